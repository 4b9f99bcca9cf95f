#include "text/chat_template.h"

#include <gtest/gtest.h>

#include "tests/text/fixture.h"

namespace jackscrew {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

std::vector<Message> messages_of(const Json& list) {
  std::vector<Message> messages;
  for (const Json& item : list) {
    messages.push_back({item["role"].get<std::string>(), item["content"].get<std::string>()});
  }
  return messages;
}

// The trained tokens as text, runs separated by '|'.
std::string trained_text(const Tokenizer& tokenizer, const EncodedSegments& encoded) {
  std::string text;
  bool before = false;
  for (size_t i = 0; i < encoded.ids.size(); ++i) {
    const bool trained = encoded.trained[i] != 0;
    if (trained && !before && !text.empty()) text += '|';
    if (trained) text += tokenizer.token_bytes(encoded.ids[i]);
    before = trained;
  }
  return text;
}

TEST(ChatFormat, FindsTheDefaultSystemPrompt) {
  const auto system = [](const char* text) { return detect_chat_format(text).default_system; };
  const std::string smollm = golden()["template"].get<std::string>();
  EXPECT_EQ(detect_chat_format(smollm).kind, ChatFormat::Kind::chatml);
  EXPECT_EQ(system(smollm.c_str()),
            "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
  EXPECT_EQ(system(R"({{- "<|im_start|>system\nI\'m \"it\"\\.<|im_end|>\n" }})"), "I'm \"it\"\\.");
  EXPECT_EQ(system("{% if x %}<|im_start|>system\nRaw.<|im_end|>\n{% endif %}"), "Raw.");
  // A literal that is only the beginning is passed over for one that is whole.
  EXPECT_EQ(system(R"({{ '<|im_start|>system\n' + s + '<|im_end|>' }})"
                   R"({{ '<|im_start|>system\nA<|im_end|>' }})"),
            "A");
  for (const char* none :
       {"<|im_start|>", "{{'<|im_start|>' + role + '\n'}}", "'<|im_start|>system",
        "'<|im_start|>system\\n\\x41<|im_end|>'", "<|im_start|>system\n{{ s }}<|im_end|>"}) {
    EXPECT_EQ(detect_chat_format(none).kind, ChatFormat::Kind::chatml);
    EXPECT_EQ(system(none), "") << none;
  }
  EXPECT_EQ(detect_chat_format("[INST]").kind, ChatFormat::Kind::plain);
  EXPECT_EQ(chat_format("chatml", "").kind, ChatFormat::Kind::chatml);
  EXPECT_EQ(chat_format("plain", smollm).kind, ChatFormat::Kind::plain);
  EXPECT_EQ(chat_format("auto", smollm).kind, ChatFormat::Kind::chatml);
  expect_error(ErrorKind::usage, "auto, chatml, plain", [] { chat_format("alpaca", ""); });
}

TEST(ChatFormat, GoldenConversations) {
  const Tokenizer tokenizer = smollm_tokenizer();
  const Json expected = golden();
  const ChatFormat format = detect_chat_format(expected["template"].get<std::string>());
  for (size_t i = 0; i < expected["chats"].size(); ++i) {
    std::vector<Message> messages = messages_of(expected["chats"][i]);
    const auto encoded = encode_segments(tokenizer, render_chat(format, messages, "<|im_end|>"));
    EXPECT_EQ(encoded.ids, expected["chat_ids"][i].get<Ids>());
    messages.pop_back();
    const auto prompt = encode_segments(tokenizer, render_chat(format, messages, "", true));
    EXPECT_EQ(prompt.ids, expected["prompt_ids"][i].get<Ids>());
  }
}

TEST(ChatFormat, TrainsTheAnswersAndTheirEnds) {
  const Tokenizer tokenizer = smollm_tokenizer();
  std::vector<Message> messages = {
      {"user", "Hi"}, {"assistant", "One."}, {"user", "More"}, {"assistant", "\nTwo"}};
  const ChatFormat chatml{ChatFormat::Kind::chatml, {}};
  auto encoded = encode_segments(tokenizer, render_chat(chatml, messages, ""));
  EXPECT_EQ(trained_text(tokenizer, encoded), "One.<|im_end|>|\nTwo<|im_end|>");
  messages[1].trained = false;
  encoded = encode_segments(tokenizer, render_chat(chatml, messages, ""));
  EXPECT_EQ(trained_text(tokenizer, encoded), "\nTwo<|im_end|>");
  messages[1].trained = true;
  encoded = encode_segments(tokenizer, render_chat({}, messages, "<|im_end|>"));
  EXPECT_EQ(trained_text(tokenizer, encoded), "One.<|im_end|>|\nTwo<|im_end|>");
  EXPECT_EQ(tokenizer.decode(encoded.ids, false), "Hi\n\nOne.<|im_end|>More\n\n\nTwo<|im_end|>");
  expect_error(ErrorKind::model, "no end-of-text", [&] { render_chat({}, messages, ""); });
}

TEST(ChatFormat, SpecialTokensInContentsStayText) {
  const Tokenizer tokenizer = smollm_tokenizer();
  const std::vector<Message> messages = {{"user", "<|im_end|>"}, {"assistant", "<|im_start|>"}};
  const auto encoded =
      encode_segments(tokenizer, render_chat({ChatFormat::Kind::chatml, {}}, messages, ""));
  EXPECT_EQ(std::count(encoded.ids.begin(), encoded.ids.end(), 1), 2);
  EXPECT_EQ(std::count(encoded.ids.begin(), encoded.ids.end(), 2), 2);
  EXPECT_EQ(trained_text(tokenizer, encoded), "<|im_start|><|im_end|>");
}

TEST(ChatFormat, NeverADoubleBos) {
  TokenizerData data = golden_data("llama3");
  const Tokenizer llama3{std::move(data)};
  const std::vector<Segment> bare = {{"hello", false, false}};
  const std::vector<Segment> with_bos = {{"<|begin_of_text|>", false, true},
                                         {"hello", true, false}};
  for (const auto& segments : {bare, with_bos}) {
    const auto encoded = encode_segments(llama3, segments);
    EXPECT_EQ(encoded.ids[0], llama3.bos());
    EXPECT_EQ(std::count(encoded.ids.begin(), encoded.ids.end(), llama3.bos()), 1);
    EXPECT_EQ(encoded.trained[0], 0);
    EXPECT_EQ(encoded.trained.size(), encoded.ids.size());
  }
}

}  // namespace
}  // namespace jackscrew
