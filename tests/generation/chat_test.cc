// Conversations: what is kept of a turn gives the next one the answers of a fresh computation.
#include "generation/chat.h"
#include "tests/support/paths.h"

#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/tiny_run.h"
#include "text/tokenizer/byte_map.h"

namespace jackscrew {
namespace {

constexpr int64_t kContext = 600;  // more than is computed at once

class ChatTest : public ::testing::Test {
 protected:
  ChatTest()
      : tiny_("chat"),
        recipe_(make_recipe({"init=random", "method=full", "threads=1"})),
        files_(open_model(tiny_.file("long.json", R"({
          "architectures": ["LlamaForCausalLM"], "vocab_size": 260, "hidden_size": 32,
          "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "max_position_embeddings": 2000})"))),
        tokenizer_(byte_tokenizer()),
        format_(chat_format("chatml", tokenizer_.data(), {})),
        session_(make_session(recipe_, files_, chat_use(kContext))) {
    options_.max_new_tokens = 12;
    options_.vocab_size = tokenizer_.vocab_size();
    options_.end_tokens = {tokenizer_.eos()};
  }

  int64_t prompt_tokens(const std::vector<Message>& messages) const {
    return std::ssize(encode_conversation(tokenizer_, format_, messages));
  }

  // One exchange less would leave no room.
  void expect_least_forgotten(const std::vector<Message>& messages, int64_t forgotten) const {
    if (forgotten == 0) return;
    const std::vector<Message> more(messages.begin() + 2 * (forgotten - 1), messages.end());
    EXPECT_GT(prompt_tokens(more) + options_.max_new_tokens, kContext);
  }

  // What a session that knows nothing of the turns before answers to them.
  std::vector<int32_t> fresh_answer(const std::vector<Message>& messages) {
    const auto ids = encode_segments(tokenizer_, render_chat(format_, messages, true).segments).ids;
    GenerationOptions options = options_;
    const auto session = make_session(
        recipe_, files_, generation_use(static_cast<int64_t>(ids.size()), options.max_new_tokens));
    return generate(*session, ids, options, [](int32_t) {}).ids;
  }

  TinyRun tiny_;
  Recipe recipe_;
  ModelFiles files_;
  Tokenizer tokenizer_;
  ChatFormat format_;
  std::unique_ptr<Session> session_;
  GenerationOptions options_;
};

TEST_F(ChatTest, EveryTurnSeesTheOnesBefore) {
  Chat chat(*session_, tokenizer_, format_, "Be brief.", options_, kContext);
  std::vector<Message> messages = {{"system", "Be brief."}};
  std::string shown;
  for (const std::string message : {"Hello there", "And again", "A third time"}) {
    messages.push_back({"user", message});
    shown.clear();
    const Chat::Answer answer = chat.say(message, [&](const std::string& text) { shown += text; });
    EXPECT_EQ(answer.generation.ids, fresh_answer(messages)) << message;
    EXPECT_EQ(answer.text, shown);
    EXPECT_EQ(answer.forgotten, 0);
    EXPECT_LE(answer.computed, answer.prompt_tokens);
    messages.push_back({"assistant", answer.text});
  }
  // The beginning was known.
  messages.push_back({"user", "x"});
  const Chat::Answer last = chat.say("x", [](const std::string&) {});
  EXPECT_LT(last.computed, last.prompt_tokens / 2);
  chat.forget();
  const Chat::Answer anew = chat.say("x", [](const std::string&) {});
  EXPECT_EQ(anew.generation.ids, fresh_answer({{"system", "Be brief."}, {"user", "x"}}));
}

// So hot that every token is as likely: the answers are the numbers drawn.
TEST_F(ChatTest, TurnsDrawNumbersOfTheirOwn) {
  options_.sampling.temperature = 1e6;
  Chat chat(*session_, tokenizer_, format_, "", options_, kContext);
  const auto first = chat.say("Hello", [](const std::string&) {}).generation.ids;
  const auto second = chat.say("Hello", [](const std::string&) {}).generation.ids;
  ASSERT_GE(std::ssize(first), 4);
  EXPECT_NE(first, second);
}

TEST_F(ChatTest, TheOldestGoWhenTheContextIsFull) {
  Chat chat(*session_, tokenizer_, format_, "", options_, kContext);
  std::vector<Message> messages;
  int64_t forgotten = 0;
  for (int turn = 0; turn < 8; ++turn) {
    const std::string message(100, static_cast<char>('a' + turn));
    const Chat::Answer answer = chat.say(message, [](const std::string&) {});
    EXPECT_LE(answer.prompt_tokens + static_cast<int64_t>(answer.generation.ids.size()), kContext);
    messages.push_back({"user", message});
    expect_least_forgotten(messages, answer.forgotten);
    messages.erase(messages.begin(), messages.begin() + 2 * answer.forgotten);
    EXPECT_EQ(answer.generation.ids, fresh_answer(messages)) << turn;
    messages.push_back({"assistant", answer.text});
    forgotten += answer.forgotten;
  }
  EXPECT_GT(forgotten, 0);
  // A message that does not fit by itself changes nothing.
  EXPECT_THROW(chat.say(std::string(kContext, 'z'), [](const std::string&) {}), Error);
  messages.push_back({"user", "ok"});
  const Chat::Answer answer = chat.say("ok", [](const std::string&) {});
  messages.erase(messages.begin(), messages.begin() + 2 * answer.forgotten);
  EXPECT_EQ(answer.generation.ids, fresh_answer(messages));
}

TEST_F(ChatTest, AnAnswerCanBeStopped) {
  const std::atomic<bool> stop{true};
  options_.stop = &stop;
  Chat chat(*session_, tokenizer_, format_, "", options_, kContext);
  const Chat::Answer answer = chat.say("Hello", [](const std::string&) {});
  EXPECT_LE(answer.generation.ids.size(), 1u);
}

TEST_F(ChatTest, ALongMessageTakesThePlaceOfAsManyAsItMust) {
  std::atomic<bool> stop{false};
  options_.stop = &stop;
  Chat chat(*session_, tokenizer_, format_, "", options_, kContext);
  std::vector<Message> messages;
  for (const std::string message : {"a", "b", "c", "d", "e", "f"}) {
    const Chat::Answer answer = chat.say(message, [](const std::string&) {});
    ASSERT_EQ(answer.forgotten, 0);
    messages.push_back({"user", message});
    messages.push_back({"assistant", answer.text});
  }
  const Message question = {"user", std::string(300, 'x')};
  messages.push_back(question);
  // Where it is stopped, nobody looks for how many that is, and none are forgotten.
  stop.store(true);
  const Chat::Answer stopped = chat.say(question.content, [](const std::string&) {});
  EXPECT_EQ(stopped.prompt_tokens, prompt_tokens({question}));
  EXPECT_EQ(stopped.forgotten, 0);
  stop.store(false);
  const Chat::Answer answer = chat.say(question.content, [](const std::string&) {});
  EXPECT_GT(answer.forgotten, 1);
  EXPECT_LT(answer.forgotten, 6);
  expect_least_forgotten(messages, answer.forgotten);
  messages.erase(messages.begin(), messages.begin() + 2 * answer.forgotten);
  EXPECT_EQ(answer.prompt_tokens, prompt_tokens(messages));
  EXPECT_EQ(answer.generation.ids, fresh_answer(messages));
}

// Between the pieces in which a long prompt is computed; what is done of it is known to the next.
TEST_F(ChatTest, ALongPromptCanBeStopped) {
  std::atomic<bool> stop{false};
  options_.stop = &stop;
  Chat chat(*session_, tokenizer_, format_, "", options_, kContext);
  session_->set_logits_listener(
      [&](std::span<const int32_t>, int64_t, bool, const std::function<void()>& compute) {
        compute();
        stop.store(true);
      });
  const std::string message(520, 'x');  // more than is computed at once, with its marks
  const Chat::Answer stopped = chat.say(message, [](const std::string&) {});
  const int64_t piece = session_->tokens_at_once();
  ASSERT_GT(stopped.prompt_tokens, piece);
  EXPECT_TRUE(stopped.generation.ids.empty());
  EXPECT_FALSE(stopped.generation.ended);
  EXPECT_EQ(stopped.cached, 0);
  EXPECT_EQ(stopped.computed, piece);
  session_->set_logits_listener({});
  stop.store(false);
  const Chat::Answer whole = chat.say(message, [](const std::string&) {});
  EXPECT_EQ(whole.cached, piece);
  EXPECT_EQ(whole.computed, whole.prompt_tokens - piece);
  EXPECT_EQ(whole.generation.ids, fresh_answer({{"user", message}}));
}

// Llama 2's tokens of words begin with a space, which is not the answer's own. The template puts
// one there: if the answer kept its own, the next turn would read two, and know nothing of it.
TEST_F(ChatTest, AnAnswerBeginsWithoutTheSpaceOfItsFirstToken) {
  TokenizerData data;
  data.spelling = Spelling::text;
  data.leading_space = LeadingSpace::drop_one;
  data.tokens = {"\u2581a", "\u2581b", "\u2581", "a", "b", "<s>", "</s>"};
  data.kinds.assign(5, TokenKind::normal);
  data.kinds.resize(7, TokenKind::special);
  data.merges = {{"\u2581", "a"}, {"\u2581", "b"}};
  data.normalizer = {{NormalizerStep::Kind::prepend, {}, "\u2581"},
                     {NormalizerStep::Kind::replace, " ", "\u2581"}};
  data.bos = 5;
  data.eos = 6;
  data.chat_template =
      "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}"
      "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}";
  const Tokenizer tokenizer(std::move(data));
  options_.vocab_size = 2;  // words alone are drawn
  options_.end_tokens = {tokenizer.eos()};
  const ChatFormat format = chat_format("auto", tokenizer.data(), {});
  Chat chat(*session_, tokenizer, format, "", options_, kContext);
  const Chat::Answer first = chat.say("a b", [](const std::string&) {});
  ASSERT_EQ(std::ssize(first.generation.ids), options_.max_new_tokens);
  EXPECT_EQ(first.text, tokenizer.decode(first.generation.ids, true));
  EXPECT_EQ(first.text.front(), first.generation.ids.front() == 0 ? 'a' : 'b');
  // All is known to the next turn but the last token, which had none after it.
  const Chat::Answer second = chat.say("b", [](const std::string&) {});
  EXPECT_EQ(second.cached, first.prompt_tokens + options_.max_new_tokens - 1);
}

TEST_F(ChatTest, WhatATemplateLeavesOutIsNoPrompt) {
  TokenizerData data = byte_tokenizer();
  data.add_bos = false;
  data.chat_template = "{% for m in messages %}{% if m.role == 'human' %}m{% endif %}{% endfor %}";
  const Tokenizer tokenizer(std::move(data));
  const ChatFormat format = chat_format("auto", tokenizer.data(), {});
  Chat chat(*session_, tokenizer, format, "", options_, kContext);
  for (int i = 0; i < 2; ++i) {
    expect_error(ErrorKind::usage, "there is no prompt to continue",
                 [&] { chat.say("Hi", [](const std::string&) {}); });
  }
}

TEST(ChatProgram, AnswersLineByLine) {
  const TinyRun tiny("chat_program");
  const auto chat = [&](const std::string& input, const std::string& more) {
    return run_shell("printf '" + input + "' | " + std::string(kProgram) +
                     " chat model=" + tiny.config() +
                     " init=random tokenizer=bytes chat_template=chatml threads=1 " + more);
  };
  const Outcome answers = chat("Hi\\n\\n/reset \\r\\nHi\\r\\nMore\\n/exit\\r\\nnever\\n",
                               "--json max_new_tokens=4 2>/dev/null");
  EXPECT_EQ(answers.exit_code, 0);
  std::vector<nlohmann::json> lines;
  std::istringstream text(answers.out);
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["text"], lines[1]["text"]);
  EXPECT_GT(lines[2]["prompt_tokens"], lines[1]["prompt_tokens"]);
  EXPECT_EQ(lines[0]["forgotten"], 0);
  EXPECT_EQ(lines[1]["forgotten"], 0);  // /reset drops nothing to make room
  EXPECT_EQ(lines[2]["forgotten"], 1);
  // A command of the program, and no message.
  const Outcome help = chat("/help\\n", "max_new_tokens=4 2>&1");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("/reset   forget the conversation\n"), std::string::npos) << help.out;
  EXPECT_EQ(help.out.find("tok/s"), std::string::npos) << help.out;
  const Outcome long_one = chat("Much too long a message for that\\n", "context=16 2>&1");
  EXPECT_EQ(long_one.exit_code, 2);
  // BOS, "<|im_start|>user\n" and "<|im_end|>\n<|im_start|>assistant\n" around it.
  EXPECT_NE(
      long_one.out.find("the message takes 83 tokens, an answer needs 4 more, and context has "
                        "16\nhint: shorten it, or raise context to 111\n"),
      std::string::npos)
      << long_one.out;
  // There is room for the message itself.
  const Outcome close = chat("Much too long a message for that\\n", "context=100 2>&1");
  EXPECT_EQ(close.exit_code, 2);
  EXPECT_NE(close.out.find("the message takes 83 tokens, an answer needs 25 more, and context has "
                           "100\nhint: shorten it, or raise context to 111; or set "
                           "max_new_tokens=17\n"),
            std::string::npos)
      << close.out;
  EXPECT_EQ(chat("Much too long a message for that\\n", "context=111 2>&1").exit_code, 0);
  EXPECT_EQ(
      chat("Much too long a message for that\\n", "context=100 max_new_tokens=17 2>&1").exit_code,
      0);
  // 128 are all that the model has.
  const Outcome longest = chat(std::string(130, 'x') + "\\n", "prompt=Hi 2>&1");
  EXPECT_NE(
      longest.out.find("and context has 128\nhint: shorten it: the model has no more than 128"),
      std::string::npos)
      << longest.out;
  EXPECT_NE(longest.out.find("warning: chat does not use prompt\n"), std::string::npos);
}

// Whoever reads JSON hears of what was dropped, and of answers that were cut.
TEST(ChatProgram, JsonSaysWhatEndedAnAnswer) {
  const TinyRun tiny("chat_ended");
  const auto chat = [&](const std::string& input, const std::string& more) {
    const Outcome outcome =
        run_shell("printf '" + input + "' | " + std::string(kProgram) + " chat --json model=" +
                  tiny.config() + " init=random tokenizer=bytes chat_template=chatml threads=1 " +
                  more + " 2>/dev/null");
    EXPECT_EQ(outcome.exit_code, 0);
    std::vector<nlohmann::json> lines;
    std::istringstream text(outcome.out);
    for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  };
  // One token, unless that is the end.
  const auto short_one = chat("Hi\\n", "max_new_tokens=1");
  ASSERT_EQ(short_one.size(), 1u);
  EXPECT_EQ(short_one[0]["ended"], short_one[0]["tokens"] == 1 ? "max_new_tokens" : "model");
  // A message takes 53 tokens with its marks: two have no room beside an answer.
  const auto two = chat("Hi\\nHi\\n", "context=80 max_new_tokens=100");
  ASSERT_EQ(two.size(), 2u);
  for (const nlohmann::json& line : two) {
    const bool is_full = line["prompt_tokens"].get<int>() + line["tokens"].get<int>() == 80;
    EXPECT_EQ(line["ended"], is_full ? "context" : "model") << line;
  }
  EXPECT_EQ(two[0]["forgotten"], 0);
  EXPECT_EQ(two[1]["forgotten"], 1);
  EXPECT_EQ(two[1]["text"], two[0]["text"]);
}

// Those of a soft prompt, which stand before every text.
TEST(ChatProgram, VirtualTokensTakePositions) {
  const TinyRun tiny("chat_virtual");
  tiny.must_train("model", "method=full max_steps=1");
  const std::string model = " tokenizer=bytes threads=1 model=" + tiny.path("model").string();
  tiny.must_train("soft", "method=prompt prompt_tokens=20 max_steps=1 init=pretrained" + model);
  const std::string with_prompt = model + " adapter=" + tiny.path("soft").string() + " 2>&1";
  const std::string text(106, 'x');  // 107 tokens with BOS
  const Outcome answer = run("generate max_new_tokens=40 prompt=" + text + with_prompt);
  EXPECT_EQ(answer.exit_code, 0) << answer.out;
  EXPECT_NE(answer.out.find("context of 128 tokens, 20 of them virtual, leaves room for 1 token"),
            std::string::npos)
      << answer.out;
  const Outcome longer = run("generate max_new_tokens=40 prompt=x" + text + with_prompt);
  EXPECT_EQ(longer.exit_code, 2);
  EXPECT_NE(longer.out.find("20 of them virtual, leaves no room for an answer"), std::string::npos)
      << longer.out;
  const Outcome chat =
      run_shell("echo " + text + " | " + kProgram + " chat chat_template=chatml" + with_prompt);
  EXPECT_NE(chat.out.find("and context has 108\nhint: shorten it: the model has no more than 108"),
            std::string::npos)
      << chat.out;
}

}  // namespace
}  // namespace jackscrew
