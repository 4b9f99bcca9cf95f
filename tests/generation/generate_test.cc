// Generation: the cache against none, and draws against their distributions.
#include "generation/generate.h"

#include <unistd.h>

#include <limits>
#include <set>

#include "formats/peft.h"
#include "generation/chat.h"
#include "session/adapter.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

class CacheTest : public ::testing::TestWithParam<const char*> {};

TEST_P(CacheTest, GreedyAnswerIsTheArgmaxOfFullContexts) {
  const ModelFiles files = open_model(golden_path(GetParam()).string());
  const std::vector<int32_t> prompt = {5, 17, 2, 40};
  constexpr int64_t kNew = 12;
  SessionUse use = generation_use(static_cast<int64_t>(prompt.size()), kNew);
  use.tokens = use.max_positions;  // room for the full contexts of the comparison
  const auto session = make_session(make_recipe({"method=full"}), files, use);
  const GenerationOptions options{
      .sampling = {}, .max_new_tokens = kNew, .end_tokens = {}, .vocab_size = 1 << 20};
  std::vector<int32_t> seen;
  const Generation answer =
      generate(*session, prompt, options, [&](int32_t id) { seen.push_back(id); });
  EXPECT_EQ(answer.ids, seen);
  ASSERT_EQ(answer.ids.size(), static_cast<size_t>(kNew));
  EXPECT_EQ(answer.decoded, kNew - 1);
  EXPECT_FALSE(answer.ended);
  // Again token by token, this time with the logits of either way side by side.
  session->keep_cached(0);
  std::vector<int32_t> context = prompt;
  std::span<const int32_t> fresh = context;
  for (const int32_t id : answer.ids) {
    const Tensor cached = session->logits(fresh, 1, true);
    const std::vector<float> with_cache(cached.data<float>(), cached.data<float>() + cached.size());
    const Tensor whole = session->logits(context, 1, false);
    const float* values = whole.data<float>();
    EXPECT_EQ(std::max_element(values, values + whole.size()) - values, id);
    EXPECT_LE(relative_error(values, with_cache), 1e-5);
    context.push_back(id);
    fresh = std::span(context).last(1);
  }
}

TEST_P(CacheTest, AnEndTokenEndsTheAnswer) {
  const ModelFiles files = open_model(golden_path(GetParam()).string());
  const std::vector<int32_t> prompt = {5, 17, 2, 40};
  GenerationOptions options{
      .sampling = {}, .max_new_tokens = 6, .end_tokens = {}, .vocab_size = 1 << 20};
  const auto session = make_session(make_recipe({"method=full"}), files, generation_use(4, 6));
  const auto ignore = [](int32_t) {};
  const Generation whole = generate(*session, prompt, options, ignore);
  options.end_tokens = {whole.ids[3]};
  const Generation cut = generate(*session, prompt, options, ignore);
  EXPECT_TRUE(cut.ended);
  const auto first = std::find(whole.ids.begin(), whole.ids.end(), whole.ids[3]);
  EXPECT_EQ(cut.ids, std::vector<int32_t>(whole.ids.begin(), first));
  // Rows of the model beyond the tokenizer's vocabulary are never drawn.
  options.end_tokens.clear();
  options.vocab_size = 3;
  for (const int32_t id : generate(*session, prompt, options, ignore).ids) EXPECT_LT(id, 3);
}

// The report's answers: their cache lies where a step has its activations.
TEST_P(CacheTest, ATrainingSessionAnswersBetweenItsSteps) {
  const ModelFiles files = open_model(golden_path(GetParam()).string());
  const std::vector<int32_t> prompt = {5, 17, 2, 40};
  const GenerationOptions options{
      .sampling = {}, .max_new_tokens = 12, .end_tokens = {}, .vocab_size = 1 << 20};
  const Recipe recipe = make_recipe({"method=full", "learning_rate=0"});
  const auto answer = [&](Session& session) {
    return generate(session, prompt, options, [](int32_t) {}).ids;
  };
  const auto expected = answer(*make_session(recipe, files, generation_use(4, 12)));
  const StepBatch batch = Golden(GetParam()).batch();
  SessionUse use = training_use(batch.tokens);
  use.logits_rows = 1;
  const SessionPlan plan = Session::rehearse(recipe, files, use);
  Session session(recipe, files, use, plan);
  EXPECT_EQ(answer(session), expected);
  session.accumulate(batch, 0.0, 0);
  session.update({});
  EXPECT_EQ(answer(session), expected);
  session.loss_sum(batch);
  EXPECT_EQ(answer(session), expected);
  EXPECT_EQ(session.memory().ledger().peak, plan.ledger.peak);
}

TEST_P(CacheTest, TakesNoMemoryOfATrainingSession) {
  const ModelFiles files = open_model(golden_path(GetParam()).string());
  SessionUse use = training_use(512);
  for (const char* recompute : {"true", "false"}) {
    const Recipe recipe =
        make_recipe({"method=full", std::string("gradient_checkpointing=") + recompute});
    use.logits_rows = 0;
    const int64_t without = Session::rehearse(recipe, files, use).arenas.stash;
    use.logits_rows = 1;
    const int64_t alignment = 2 * files.config.num_hidden_layers * 64;
    EXPECT_LE(Session::rehearse(recipe, files, use).arenas.stash, without + alignment);
  }
  EXPECT_GE(answer_tokens(use, files.config, 0), 128);
  EXPECT_FALSE(answers_take_memory(use, files.config, 0));
}

// Where a step is shorter than the shortest cache, that cache is what is added at most.
TEST_P(CacheTest, TakesTheShortestCacheOfAShortStep) {
  const ModelFiles files = open_model(golden_path(GetParam()).string());
  const ModelConfig& config = files.config;
  const Recipe recipe = make_recipe({"method=full", "gradient_checkpointing=true"});
  SessionUse use = training_use(16);
  use.max_positions = 128;
  use.logits_rows = 0;
  const int64_t without = Session::rehearse(recipe, files, use).arenas.stash;
  use.logits_rows = 1;
  const int64_t with = Session::rehearse(recipe, files, use).arenas.stash;
  EXPECT_EQ(answer_tokens(use, config, 0), 128);
  EXPECT_TRUE(answers_take_memory(use, config, 0));
  const int64_t kv = config.num_key_value_heads * config.head_dim;
  const int64_t cache = 4 * 2 * config.num_hidden_layers * kv * 128;
  const int64_t alignment = 2 * config.num_hidden_layers * 64;
  EXPECT_GE(with, cache);
  EXPECT_LE(with, without + cache + alignment);
}

INSTANTIATE_TEST_SUITE_P(Models, CacheTest,
                         ::testing::Values("gqa_tied", "mha_untied", "gqa_tied_rope_llama3", "odd",
                                           "mistral", "qwen2_yarn", "qwen3"),
                         [](const auto& test) { return std::string(test.param); });

// With dynamic rope scaling the angles depend on the length of the text, not on the room for more.
// The ids are transformers' with its own cache, in double precision, on both sides of the 24
// positions of the model.
TEST(Generation, DynamicRopeFollowsTheText) {
  const ModelFiles files = open_model(golden_path("rope_dynamic").string());
  const auto answer = [&](int64_t tokens, int64_t count, const SessionUse& use) {
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < tokens; ++i) prompt.push_back((7 * i + 3) % 61);
    const auto session = make_session(make_recipe({"method=full"}), files, use);
    const GenerationOptions options{
        .sampling = {}, .max_new_tokens = count, .end_tokens = {}, .vocab_size = 61};
    return generate(*session, prompt, options, [](int32_t) {}).ids;
  };
  const std::vector<int32_t> of_20 = {52, 34, 49, 15, 11, 7, 48, 37, 20, 7, 48, 7};
  const std::vector<int32_t> of_30 = {37, 20, 23, 11, 55, 2, 15, 7, 7, 48, 7, 20};
  EXPECT_EQ(answer(20, 12, generation_use(20, 12)), of_20);
  EXPECT_EQ(answer(20, 12, generation_use(20, 28)), of_20);
  EXPECT_EQ(answer(30, 12, generation_use(30, 12)), of_30);
  // In a conversation every position has its own, for what is cached to stay right: the same as
  // those of a prompt that is no longer than the model's positions.
  EXPECT_EQ(answer(20, 12, chat_use(32)), of_20);
  EXPECT_EQ(answer(20, 12, chat_use(48)), of_20);
  EXPECT_EQ(answer(30, 12, chat_use(42)), answer(30, 12, chat_use(48)));
}

// A prompt that is read in pieces needs the most scratch memory at its end, where all keys before
// it are attended to.
TEST(Generation, PiecesOfALongPromptTakeWhatWasPlanned) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const Recipe recipe = make_recipe({"method=full", "threads=1"});
  const SessionUse use{
      .training = false, .tokens = 16, .max_positions = 512, .kv_tokens = 512, .logits_rows = 1};
  const SessionPlan plan = Session::rehearse(recipe, files, use);
  Session session(recipe, files, use, plan);
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 510; ++i) prompt.push_back(i * 7 % 50);
  const GenerationOptions options{
      .sampling = {}, .max_new_tokens = 2, .end_tokens = {}, .vocab_size = 1 << 20};
  EXPECT_EQ(generate(session, prompt, options, [](int32_t) {}).ids.size(), 2u);
  EXPECT_EQ(session.memory().ledger().peak, plan.ledger.peak);
}

TEST(Generation, APenaltyKeepsAnAnswerFromRepeating) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const std::vector<int32_t> prompt = {5, 17, 2, 40};
  const auto session = make_session(make_recipe({}), files, generation_use(4, 12));
  GenerationOptions options;
  options.repetition_penalty = 100;
  options.max_new_tokens = 12;
  options.vocab_size = files.config.vocab_size;
  const auto ids = generate(*session, prompt, options, [](int32_t) {}).ids;
  std::set<int32_t> all(prompt.begin(), prompt.end());
  all.insert(ids.begin(), ids.end());
  EXPECT_EQ(all.size(), prompt.size() + ids.size());
}

// Where the likeliest token stands in the prompt.
TEST(Generation, APenaltySparesTheTokensThatEndAnswers) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session = make_session(make_recipe({}), files, generation_use(2, 1));
  int found = 0;
  for (int32_t first = 0; first < 30; ++first) {
    for (int32_t end = 0; end < 30; ++end) {
      const std::vector<int32_t> prompt = {first, end};
      GenerationOptions options;
      options.max_new_tokens = 1;
      options.vocab_size = files.config.vocab_size;
      const auto answer = [&] { return generate(*session, prompt, options, [](int32_t) {}); };
      if (answer().ids != std::vector<int32_t>{end}) continue;
      ++found;
      options.repetition_penalty = 100;
      EXPECT_NE(answer().ids, std::vector<int32_t>{end});
      options.end_tokens = {end};
      EXPECT_TRUE(answer().ended);
    }
  }
  EXPECT_GT(found, 0);
}

TEST(Adapter, SettingsThatContradictItAreRefused) {
  const std::string adapter = "adapter=" + golden_path("lora").string();
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> settings = more;
    settings.push_back(adapter);
    return with_adapter_options(make_recipe(settings));
  };
  const Recipe taken = with({});
  const OptionSet& options = taken.options;
  const std::string rank = options.text("lora_rank");
  const std::string alpha = options.text("lora_alpha");
  for (const char* method : {"method=full", "method=rotary", "learner=full"}) {
    expect_error(ErrorKind::usage, "an adapter is given, but the learner is",
                 [&] { with({method}); });
  }
  for (const char* other : {"lora_rank=3", "lora_alpha=0.7", "lora_target=k_proj"}) {
    const std::string name = std::string(other).substr(0, std::string(other).find('='));
    expect_error(ErrorKind::usage, name + " is ", [&] { with({other}); });
  }
  const bool rslora = options.boolean("use_rslora");
  expect_error(ErrorKind::usage, "leave use_rslora out",
               [&] { with({rslora ? "use_rslora=false" : "use_rslora=true"}); });
  // What says the same passes, and dropout is the run's own.
  const Recipe same = with({"method=lora", "lora_rank=" + rank, "lora_alpha=" + alpha,
                            "lora_target=" + options.text("lora_target"), "lora_dropout=0.25"});
  EXPECT_EQ(same.options.text("lora_target"), options.text("lora_target"));
  EXPECT_EQ(same.options.number("lora_dropout"), 0.25);
  EXPECT_EQ(with({"lora_target=all-linear"}).options.text("lora_target"),
            options.text("lora_target"));
}

TEST(Adapter, OfTheHeadIsRefused) {
  const fs::path directory =
      fs::temp_directory_path() / fmt::format("jackscrew_head_adapter_{}", ::getpid());
  const nlohmann::json config = {{"peft_type", "LORA"}, {"r", 1}, {"lora_alpha", 1}};
  PeftWriter writer(directory, config, "",
                    {{"lm_head.lora_A.weight", {1, 2}}, {"lm_head.lora_B.weight", {3, 1}}});
  writer.write("lm_head.lora_A.weight", std::vector<float>(2));
  writer.write("lm_head.lora_B.weight", std::vector<float>(3));
  writer.commit();
  expect_message(ErrorKind::model, directory.string() + ": lm_head.lora_A.weight has no place",
                 [&] { with_adapter_options(make_recipe({"adapter=" + directory.string()})); });
  fs::remove_all(directory);
}

// The last position of a prompt read in two parts, the second over a cache, with the adapter laid
// over the model.
TEST(Adapter, CachedLogitsAreThoseOfPeft) {
  const Golden golden("lora");
  const Recipe recipe =
      with_adapter_options(make_recipe({"adapter=" + golden_path("lora").string()}));
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto ends = golden.values<int32_t>("cu_seqlens");
  auto ids = golden.values<int32_t>("ids");
  ids.resize(static_cast<size_t>(ends[1]));
  const auto vocab = static_cast<size_t>(files.config.vocab_size);
  const auto logits = golden.values("logits");
  const auto row = logits.begin() + static_cast<ptrdiff_t>((ids.size() - 1) * vocab);
  const std::vector<float> expected(row, row + static_cast<ptrdiff_t>(vocab));
  const auto session = make_session(recipe, files, generation_use(ends[1], 1));
  const auto last_logits = [&] {
    session->keep_cached(0);
    session->logits(std::span(ids).first(ids.size() - 2), 1, true);
    return session->logits(std::span(ids).last(2), 1, true).data<float>();
  };
  EXPECT_GT(relative_error(last_logits(), expected), 1e-3);
  load_adapter(session->stage(), session->ops(), recipe.adapter);
  session->restored();
  EXPECT_LE(relative_error(last_logits(), expected), 1e-5);
}

// Probabilities 0.5, 0.3, 0.15, 0.05 in an order that is not sorted.
const std::vector<float> kLogits = {std::log(0.3f), std::log(0.05f), std::log(0.5f),
                                    std::log(0.15f)};
constexpr int kDraws = 40000;

std::vector<double> shares(const SamplingOptions& options) {
  Sampler sampler(options);
  std::vector<double> counts(kLogits.size(), 0.0);
  for (int64_t i = 0; i < kDraws; ++i) {
    counts[static_cast<size_t>(sampler.draw(kLogits, i))] += 1.0;
  }
  for (double& count : counts) count /= kDraws;
  return counts;
}

// Five standard deviations of a share of kDraws.
void expect_shares(const SamplingOptions& options, const std::vector<double>& expected) {
  const std::vector<double> actual = shares(options);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double p = expected[i];
    EXPECT_NEAR(actual[i], p, 5.0 * std::sqrt(p * (1.0 - p) / kDraws)) << i;
  }
}

TEST(Sampler, DrawsFromTheDistribution) {
  expect_shares({.temperature = 1, .seed = 1}, {0.3, 0.05, 0.5, 0.15});
  // Temperature 1/2 squares the probabilities.
  const double sum = 0.09 + 0.0025 + 0.25 + 0.0225;
  expect_shares({.temperature = 0.5, .seed = 2},
                {0.09 / sum, 0.0025 / sum, 0.25 / sum, 0.0225 / sum});
}

TEST(Sampler, TopKAndTopPKeepTheLikeliest) {
  expect_shares({.temperature = 1, .top_k = 2, .seed = 3}, {0.375, 0, 0.625, 0});
  expect_shares({.temperature = 1, .top_k = 9, .seed = 4}, {0.3, 0.05, 0.5, 0.15});
  // 0.5 does not reach 0.6, 0.5 + 0.3 does.
  expect_shares({.temperature = 1, .top_p = 0.6, .seed = 5}, {0.375, 0, 0.625, 0});
  expect_shares({.temperature = 1, .top_p = 0.45, .seed = 6}, {0, 0, 1, 0});
  // top_p counts what top_k left: 0.5 / 0.8 is more than 0.6.
  expect_shares({.temperature = 1, .top_k = 2, .top_p = 0.6, .seed = 7}, {0, 0, 1, 0});
  expect_shares({.temperature = 1, .top_k = 1, .seed = 8}, {0, 0, 1, 0});
}

TEST(Sampler, MinPIsAShareOfTheLikeliest) {
  // 0.3 is 0.6 of the likeliest's 0.5, and 0.15 is 0.3 of it.
  expect_shares({.temperature = 1, .min_p = 0.31, .seed = 12}, {0.375, 0, 0.625, 0});
  expect_shares({.temperature = 1, .min_p = 1, .seed = 13}, {0, 0, 1, 0});
  // top_p counts what min_p has not yet taken: 0.5 of all is less than 0.6.
  expect_shares({.temperature = 1, .top_p = 0.6, .min_p = 0.31, .seed = 15}, {0.375, 0, 0.625, 0});
  // The temperature comes first: 0.36, 0.01, 1 and 0.09 of the likeliest's.
  expect_shares({.temperature = 0.5, .min_p = 0.3, .seed = 14}, {0.36 / 1.36, 0, 1 / 1.36, 0});
}

// The values of transformers.RepetitionPenaltyLogitsProcessor(1.5).
TEST(Sampler, RepetitionIsPenalisedOnceForEachToken) {
  const std::set<int32_t> text = {1, 3, 4, 4, 3, 100};  // an id without a logit
  std::vector<float> logits = {3, -3, 0, 6, -1.5, 2};
  penalise_repetition(logits, text, 1.0);
  EXPECT_EQ(logits, (std::vector<float>{3, -3, 0, 6, -1.5, 2}));
  penalise_repetition(logits, text, 1.5);
  EXPECT_EQ(logits, (std::vector<float>{3, -4.5, 0, 4, -2.25, 2}));
}

TEST(Sampler, TopPOfALargeVocabulary) {
  // One token of 0.1, and 9999 that share the rest alike: top_p 0.15 takes 0.05 of those, the
  // lowest ids first.
  std::vector<float> logits(10000, std::log(0.9f / 9999.0f));
  logits[777] = std::log(0.1f);
  Sampler sampler({.temperature = 1, .top_p = 0.15, .seed = 9});
  std::set<int32_t> drawn;
  for (int64_t i = 0; i < 1500; ++i) drawn.insert(sampler.draw(logits, i));
  EXPECT_TRUE(drawn.erase(777) == 1);
  EXPECT_GT(drawn.size(), 250u);
  EXPECT_LT(*drawn.rbegin(), 556);  // 0.05 / (0.9 / 9999) = 555.5 of them
}

TEST(Sampler, AFunctionOfSeedAndIndex) {
  Sampler one({.temperature = 1, .seed = 10});
  Sampler other({.temperature = 1, .seed = 10});
  Sampler another({.temperature = 1, .seed = 11});
  int differing = 0;
  for (int64_t i = 99; i >= 0; --i) other.draw(kLogits, i);
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(one.draw(kLogits, i), other.draw(kLogits, i));
    differing += one.draw(kLogits, i) != another.draw(kLogits, i) ? 1 : 0;
  }
  EXPECT_GT(differing, 10);
}

TEST(Sampler, GreedyTakesTheFirstOfTheLargestAndRefusesNaN) {
  Sampler sampler({});
  EXPECT_EQ(sampler.draw(std::vector<float>{1, 3, 3, 2}, 0), 1);
  EXPECT_EQ(Sampler({.temperature = 1e-300}).draw(std::vector<float>{1, 3, 2}, 0), 1);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sampler.draw(std::vector<float>{-kInfinity, 0, -kInfinity}, 0), 1);
  for (const float bad : {std::nanf(""), kInfinity}) {
    error_of(ErrorKind::non_finite, [&] { sampler.draw(std::vector<float>{1, bad, 2}, 0); });
  }
}

TEST(Prompt, PlainIsTheTextAndChatIsAMessage) {
  const Tokenizer tokenizer(byte_tokenizer());
  EXPECT_EQ(encode_prompt(tokenizer, {}, "", "Hi"), (std::vector<int32_t>{256, 'H', 'i'}));
  EXPECT_EQ(encode_prompt(tokenizer, {}, "", ""), (std::vector<int32_t>{256}));
  EXPECT_EQ(encode_prompt(tokenizer, {}, "", "<s>Hi"), (std::vector<int32_t>{256, 'H', 'i'}));
  const auto chat = encode_prompt(tokenizer, chat_format("chatml", tokenizer.data(), {}), "", "Hi");
  EXPECT_EQ(tokenizer.decode(chat, true),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  // As training writes a conversation that has a system message.
  EXPECT_EQ(tokenizer.decode(encode_prompt(tokenizer, {}, "Sys", "Hi"), false), "<s>Sys\n\nHi\n\n");
  TokenizerData data = byte_tokenizer();
  data.add_bos = false;
  EXPECT_THROW(encode_prompt(Tokenizer(data), {}, "", ""), Error);
}

TEST(Prompt, TokensThatFillAVocabularyAreNotDrawn) {
  TokenizerData data = byte_tokenizer();
  const auto real = std::ssize(data.tokens);
  EXPECT_EQ(drawable_tokens(Tokenizer(data)), real);
  for (int i = 0; i < 3; ++i) {
    data.tokens.push_back("[PAD" + std::to_string(i) + "]");
    data.kinds.push_back(TokenKind::unused);
  }
  EXPECT_EQ(drawable_tokens(Tokenizer(data)), real);
}

TEST(Prompt, EndTokens) {
  using Ids = std::vector<int32_t>;
  TokenizerData data = byte_tokenizer();
  ModelFiles files;
  files.config.eos_token_ids = {2, 257};
  files.end_tokens = {3, 30000};  // a byte, and nothing that the tokenizer has
  EXPECT_EQ(end_tokens(Tokenizer(data), files), Ids{257});
  data.tokens.emplace_back("<|im_end|>");
  data.kinds.push_back(TokenKind::special);
  EXPECT_EQ(end_tokens(Tokenizer(data), files), (Ids{257, 258}));
  // The model's own tokenizer knows what the model's files mean.
  files.tokenizer = std::make_shared<const TokenizerData>(data);
  files.tokenizer_owner = TokenizerOwner::adapter;
  EXPECT_EQ(end_tokens(Tokenizer(data), files), (Ids{257, 258}));
  files.tokenizer_owner = TokenizerOwner::model;
  EXPECT_EQ(end_tokens(Tokenizer(data), files), (Ids{2, 3, 257, 258}));
  // A call of a tool ends as an answer does.
  data.tokens.back() = "<|eom_id|>";
  EXPECT_EQ(end_tokens(Tokenizer(data), files), (Ids{257, 258}));
  EXPECT_EQ(end_tokens(Tokenizer(byte_tokenizer()), files), Ids{257});
}

}  // namespace
}  // namespace jackscrew
