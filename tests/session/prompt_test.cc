// Soft prompts: what they compute, their gradient, and their way to disk and back.
#include "learners/prompt.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "formats/peft.h"
#include "session/adapter.h"
#include "session/loading.h"
#include "session/plan.h"
#include "tests/support/batches.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

class PromptTest : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kPrompt = 5;

  std::unique_ptr<Session> session(std::vector<std::string> settings) const {
    settings.insert(settings.begin(), {"method=prompt", "prompt_tokens=5"});
    return make_session(make_recipe(settings), files_, training_use(64));
  }

  // Sequences that begin with virtual tokens, packed.
  StepBatch batch() const {
    MicroBatch micro;
    for (const int32_t length : {9, 2, 14}) {
      Example example;
      for (int32_t i = 0; i < length; ++i) {
        example.ids.push_back((7 * i + 3 * length) % static_cast<int32_t>(vocab()));
        example.train.push_back(i % 4 != 2);
      }
      micro.append(example, kPrompt);
    }
    return step_of({micro});
  }

  int64_t vocab() const { return files_.config.vocab_size; }
  static Tensor prompt_of(Session& run) {
    return states(run.stage(), StateRole::parameter).at("prompt_embeddings");
  }

  const ModelFiles files_ = open_model(golden_path(GetParam()).string());
};

// A prompt that is the vectors of real tokens does what these do.
TEST_P(PromptTest, StandsForTokens) {
  const std::vector<int32_t> tokens = {4, 17, 9, 9, 30};
  const std::vector<int32_t> text = {8, 3, 22, 5, 11, 2};
  const Recipe recipe = make_recipe({"method=full"});
  const auto plain = make_session(recipe, files_, training_use(64));
  const auto run = session({"seed=3"});
  Tensor ids = Tensor(const_cast<int32_t*>(tokens.data()), DType::i32, {kPrompt});
  for (const auto& parameter : plain->stage().parameters()) {
    if (parameter->weight->spec().kind != WeightKind::embedding) continue;
    parameter->weight->gather(plain->ops(), ids, prompt_of(*run));
  }
  std::vector<int32_t> both = tokens;
  both.insert(both.end(), text.begin(), text.end());
  const Tensor expected = plain->logits(both, 3, false);
  const Tensor got = run->logits(text, 3, false);
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_EQ(std::memcmp(got.raw(), expected.raw(), static_cast<size_t>(got.size()) * 4), 0);
}

TEST_P(PromptTest, BeginsAsFrequentTokens) {
  const auto values = [&](const char* seed) {
    return state_values(session({seed})->stage(), StateRole::parameter).at("prompt_embeddings");
  };
  EXPECT_EQ(values("seed=1"), values("seed=1"));
  EXPECT_NE(values("seed=1"), values("seed=2"));
  const auto run = session({});
  const int64_t hidden = files_.config.hidden_size;
  std::vector<float> table(static_cast<size_t>(vocab() * hidden));
  for (const auto& parameter : run->stage().parameters()) {
    if (parameter->weight->spec().kind != WeightKind::embedding) continue;
    parameter->weight->decode(run->ops(), 0, vocab(),
                              Tensor(table.data(), DType::f32, {vocab(), hidden}));
  }
  const Tensor prompt = prompt_of(*run);
  for (int64_t p = 0; p < kPrompt; ++p) {
    const float* row = prompt.data<float>() + p * hidden;
    bool found = false;
    for (int64_t v = 0; v < vocab(); ++v) {
      found = found || std::equal(row, row + hidden, table.data() + v * hidden);
    }
    EXPECT_TRUE(found) << p;
  }
}

TEST_P(PromptTest, GradientIsThatOfDifferences) {
  for (const char* recompute : {"gradient_checkpointing=false", "gradient_checkpointing=true"}) {
    const auto run = session({recompute});
    const StepBatch step = batch();
    run->accumulate(step, 0.0, 0);
    const auto gradients = state_values(run->stage(), StateRole::gradient);
    ASSERT_EQ(gradients.size(), 1u) << "nothing else learns";
    const std::vector<float>& gradient = gradients.begin()->second;
    run->update({});
    const Tensor prompt = prompt_of(*run);
    float largest = 0.0f;
    for (const float g : gradient) largest = std::max(largest, std::abs(g));
    ASSERT_GT(largest, 0.0f);
    // Losses of f32 are right to about 1e-7 of themselves.
    constexpr float kStep = 2e-2f;
    for (size_t i = 0; i < gradient.size(); i += 7) {
      float& value = prompt.data<float>()[i];
      const float before = value;
      const auto loss_at = [&](float at) {
        value = at;
        return run->loss_sum(step) / static_cast<double>(step.targets);
      };
      const double slope = (loss_at(before + kStep) - loss_at(before - kStep)) / (2.0 * kStep);
      value = before;
      EXPECT_NEAR(static_cast<double>(gradient[i]), slope, 2e-3 * largest) << i;
    }
  }
}

TEST_P(PromptTest, LearnsAndSurvivesTheDisk) {
  const fs::path directory =
      fs::temp_directory_path() / fmt::format("jackscrew_prompt_{}", ::getpid());
  fs::remove_all(directory);
  const auto trained = session({"storage=nf4"});
  const StepBatch step = batch();
  const double before = trained->loss_sum(step);
  for (int64_t i = 0; i < 10; ++i) {
    trained->accumulate(step, 1e-2, i);
    trained->update({});
  }
  EXPECT_LT(trained->loss_sum(step), before);
  export_adapter([&](const StateVisitor& visitor) { trained->visit(visitor); }, trained->ops(),
                 trained->learner().adapter(), "base", directory);
  const PeftAdapter read = read_peft_adapter(directory);
  EXPECT_EQ(read.peft_type, "PROMPT_TUNING");
  EXPECT_EQ(read.learner, "prompt");
  ASSERT_EQ(read.tensors.size(), 1u);
  EXPECT_EQ(read.tensors[0].shape, (std::vector<int64_t>{kPrompt, files_.config.hidden_size}));

  // Nobody has to say what kind of adapter it is.
  const Recipe recipe =
      with_adapter_options(make_recipe({"adapter=" + directory.string(), "storage=nf4", "seed=7"}));
  EXPECT_EQ(recipe.learner, "prompt");
  EXPECT_EQ(recipe.learning_rate, make_recipe({"method=prompt"}).learning_rate);
  // Or what it is like, but it may be said.
  const auto beside_it = [&](const char* setting) {
    return with_adapter_options(make_recipe({"adapter=" + directory.string(), setting}));
  };
  EXPECT_EQ(beside_it("prompt_tokens=5").learner, "prompt");
  EXPECT_EQ(beside_it("prompt_init_text=Hello").options.text("prompt_init_text"), "");
  expect_message(ErrorKind::usage,
                 "prompt_tokens is 9, but the adapter " + directory.string() + " has 5",
                 [&] { beside_it("prompt_tokens=9"); });
  const auto error = error_of(ErrorKind::usage, [&] { beside_it("lora_rank=5"); });
  EXPECT_NE(message_of(error).find("of learner lora, but this run has learner prompt"),
            std::string::npos);
  EXPECT_EQ(hint_of(error), "leave lora_rank out: the adapter has learner prompt");
  const auto again = make_session(recipe, files_, training_use(64));
  load_adapter(again->stage(), again->ops(), directory);
  EXPECT_EQ(again->loss_sum(step), trained->loss_sum(step));
  fs::remove_all(directory);
}

// With a cache, in pieces, and going on with a cache that was cut, as without one.
TEST_P(PromptTest, GeneratesFromItsPlace) {
  const fs::path directory =
      fs::temp_directory_path() / fmt::format("jackscrew_prompt_cache_{}", ::getpid());
  const auto trained = session({});
  export_adapter([&](const StateVisitor& visitor) { trained->visit(visitor); }, trained->ops(),
                 trained->learner().adapter(), "base", directory);
  const Recipe recipe = with_adapter_options(make_recipe({"adapter=" + directory.string()}));
  const SessionUse use{
      .training = false, .tokens = 6, .max_positions = 12, .kv_tokens = 12, .logits_rows = 1};
  const SessionPlan plan = Session::rehearse(recipe, files_, use);
  Session run(recipe, files_, use, plan);
  load_adapter(run.stage(), run.ops(), directory);
  EXPECT_EQ(run.tokens_at_once(), 6);
  const std::vector<int32_t> text = {8, 3, 22, 5, 11, 2};
  const auto values = [&](std::span<const int32_t> ids, bool use_cache) {
    const Tensor out = run.logits(ids, 1, use_cache);
    return std::vector<float>(out.data<float>(), out.data<float>() + out.size());
  };
  const std::vector<float> whole = values(text, false);
  const auto near = [&](const std::vector<float>& got) {
    EXPECT_LE(relative_error(got.data(), whole), 1e-5);
  };
  const std::span<const int32_t> ids = text;
  near(values(text, true));
  EXPECT_EQ(run.cached_tokens(), 6);
  run.keep_cached(4);
  near(values(ids.subspan(4), true));
  run.keep_cached(0);
  EXPECT_EQ(run.cached_tokens(), 0);
  values(ids.first(5), true);
  near(values(ids.subspan(5), true));
  EXPECT_EQ(run.memory().ledger().peak, plan.ledger.peak);
  fs::remove_all(directory);
}

// The report's answers, whose cache lies where a step has its activations: the virtual tokens are
// in it, however many.
TEST_P(PromptTest, ATrainingSessionAnswersAfterALongPrompt) {
  SessionUse use = training_use(512);
  use.logits_rows = 1;
  const auto run = make_session(make_recipe({"method=prompt", "prompt_tokens=400"}), files_, use);
  const std::vector<int32_t> text = {8, 3, 22, 5, 11, 2};
  const auto values = [&](std::span<const int32_t> ids, bool use_cache) {
    const Tensor out = run->logits(ids, 1, use_cache);
    return std::vector<float>(out.data<float>(), out.data<float>() + out.size());
  };
  const std::vector<float> whole = values(text, false);
  values(std::span(text).first(5), true);
  EXPECT_LE(relative_error(values(std::span(text).last(1), true).data(), whole), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Models, PromptTest, ::testing::Values("gqa_tied", "mha_untied"),
                         [](const auto& test) { return std::string(test.param); });

TEST(PromptOptions, AreNoPartOfAWeight) {
  const auto learner = find_learner("prompt").make(make_recipe({"method=prompt"}).options);
  error_of(ErrorKind::usage, [&] { learner->merge({}, {}); });
}

TEST(PromptOptions, NeedRoomForAText) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  Recipe recipe = make_recipe({"method=prompt", "prompt_tokens=31", "sequence_len=32"});
  EXPECT_TRUE(error_of(ErrorKind::usage, [&] { settle_lengths(recipe, files); })
                  .find("sequence_len 32 has no room for a text after 31 virtual tokens") !=
              std::string::npos);
  recipe = make_recipe({"method=prompt", "prompt_tokens=30", "sequence_len=32"});
  settle_lengths(recipe, files);
}

// What is said of texts that are too long has the room that is left.
TEST(PromptOptions, LeaveTextsTheRestOfASequence) {
  ModelFiles files = open_model("llama-9m");
  const Tokenizer tokenizer = make_tokenizer("bytes", files);
  const DatasetOptions options = dataset_options(
      make_recipe({"method=prompt", "prompt_tokens=30", "sequence_len=32"}), tokenizer);
  EXPECT_EQ(options.sequence_len, 2);
  EXPECT_TRUE(options.after_virtual);
  EXPECT_FALSE(dataset_options(make_recipe({"method=lora"}), tokenizer).after_virtual);
}

}  // namespace
}  // namespace jackscrew
