#include "text/chat/chat_template.h"

#include <gtest/gtest.h>

#include "tests/text/jinja/fixture.h"

namespace jackscrew {
namespace {

using jinja::named_format;
using jinja::own_format;
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

// All text, trained parts in brackets.
std::string marked(const RenderedChat& chat) {
  std::string text;
  bool before = false;
  for (const Segment& segment : chat.segments) {
    if (segment.trained != before) text += segment.trained ? '[' : ']';
    text += segment.text;
    before = segment.trained;
  }
  return before ? text + ']' : text;
}

const std::vector<Message> kTurns = {
    {"system", "S"}, {"user", "Q1"}, {"assistant", "A1"}, {"user", "Q2"}, {"assistant", "A2"}};

TEST(ChatFormat, IsTheModelsOwnUnlessNamed) {
  TokenizerData data = golden_data("smollm");
  EXPECT_TRUE(chat_format("auto", data, {}).is_plain());
  data.chat_template = golden()["template"].get<std::string>();
  EXPECT_FALSE(chat_format("auto", data, {}).is_plain());
  EXPECT_TRUE(chat_format("plain", data, {}).is_plain());
  expect_error(ErrorKind::usage, "known: auto, plain, chatml, llama2, llama3, mistral",
               [&] { chat_format("vicuna", data, {}); });
  expect_error(ErrorKind::usage, "did you mean chatml?", [&] { chat_format("chatlm", data, {}); });
  expect_error(ErrorKind::model, "nowhere.jinja", [&] { chat_format("nowhere.jinja", data, {}); });
  // A template that is refused is an error where a conversation is read, and only there.
  data.chat_template = "\n{% include 'x' %}";
  const ChatFormat refused = chat_format("auto", data, {});
  EXPECT_FALSE(refused.is_plain());
  expect_error(ErrorKind::model, "the model's chat template, line 2: the tag {% include %}",
               [&] { render_chat(refused, kTurns); });
  expect_error(ErrorKind::model, "set another with chat_template=: plain, chatml",
               [&] { render_chat(refused, kTurns); });
  data.chat_template = std::string(5 << 20, 'x');
  expect_error(ErrorKind::model, "the model's chat template of 5242880 bytes, more than",
               [&] { render_chat(chat_format("auto", data, {}), kTurns); });
}

// The built-in ones leave out a BOS that there is not; an answer without an end would teach nobody
// to stop.
TEST(ChatFormat, BuiltInTemplatesDoWithoutBosButNotWithoutEos) {
  TokenizerData data = golden_data("smollm");
  data.bos = -1;
  for (const char* name : {"chatml", "llama2", "llama3", "mistral", "zephyr", "alpaca"}) {
    data.eos = 2;
    EXPECT_NE(marked(render_chat(chat_format(name, data, {}), kTurns)).find("Q2"),
              std::string::npos)
        << name;
    data.eos = -1;
    const ChatFormat without = chat_format(name, data, {});
    if (without.general.source.find("eos_token") == std::string::npos) continue;
    expect_error(ErrorKind::model, "set eos_token in tokenizer_config.json, or give tokenizer=DIR",
                 [&] { render_chat(without, kTurns); });
  }
}

TEST(ChatFormat, HasATemplateForTools) {
  TokenizerData data = golden_data("smollm");
  data.chat_template = "{% for m in messages %}{{ m.content }};{% endfor %}";
  data.tool_template = "{{ tools[0] }}{% for m in messages %}{{ m.content }}.{% endfor %}";
  const jinja::Value tools = jinja::Value::list({jinja::Value::text("t")});
  const ChatFormat format = chat_format("auto", data, {});
  EXPECT_EQ(marked(render_chat(format, kTurns)), "S;Q1;[A1;]Q2;[A2;]");
  const RenderedChat with_tools = render_chat(format, kTurns, false, tools);
  EXPECT_EQ(marked(with_tools), "tS.Q1.[A1.]Q2.[A2.]");
  EXPECT_FALSE(with_tools.unused_tools);
  EXPECT_EQ(marked(render_chat(format, kTurns, false, jinja::Value::list({}))),
            "S.Q1.[A1.]Q2.[A2.]");
  // A named template is the only one.
  EXPECT_TRUE(chat_format("chatml", data, {}).tools.is_none());
  // One that is refused stops only the conversations that need it.
  data.tool_template = "{% include 'x' %}";
  const ChatFormat refused = chat_format("auto", data, {});
  EXPECT_EQ(marked(render_chat(refused, kTurns)), "S;Q1;[A1;]Q2;[A2;]");
  expect_error(ErrorKind::model, "the model's chat template, line 1: the tag {% include %}",
               [&] { render_chat(refused, kTurns, false, tools); });
  data.tool_template = "{{ strftime_now('%d') }}{{ tools }}";
  EXPECT_TRUE(chat_format("auto", data, {}).uses_clock());
  data.tool_template = "";
  EXPECT_FALSE(chat_format("auto", data, {}).uses_clock());
}

TEST(ChatFormat, KnowsAllNamedTokens) {
  TokenizerData data = golden_data("smollm");
  data.named_tokens = {{"sep_token", 1}, {"image_token", 2}};
  data.chat_template =
      "{% for m in messages %}{{ m.content }}{{ sep_token }}{% endfor %}{{ image_token }}";
  const ChatFormat format = chat_format("auto", data, {});
  const Message question[] = {{"user", "Q"}};
  const RenderedChat chat = render_chat(format, question);
  EXPECT_EQ(marked(chat), "Q<|im_start|><|im_end|>");
  ASSERT_EQ(chat.segments.size(), 2u);
  EXPECT_TRUE(chat.segments[1].is_template_text);
  const jinja::Variables own = {{"image_token", jinja::Value::text("I")}};
  EXPECT_EQ(marked(render_chat(format, question, false, jinja::None{}, own)), "Q<|im_start|>I");
  EXPECT_TRUE(is_own_variable("sep_token"));
  EXPECT_FALSE(is_own_variable("image_token"));
  data.named_tokens["cls_token"] = 3;
  EXPECT_EQ(chat_format("plain", data, {}).mentioned_tokens(data).size(), 0u);
  EXPECT_EQ(format.mentioned_tokens(data),
            (std::map<std::string, int32_t>{{"image_token", 2}, {"sep_token", 1}}));
}

TEST(ChatFormat, RefusesATemplateForToolsAlone) {
  TokenizerData data = golden_data("smollm");
  data.chat_template = "";
  data.tool_template = "{{ tools[0] }}{% for m in messages %}{{ m.content }}.{% endfor %}";
  const ChatFormat format = chat_format("auto", data, {});
  EXPECT_FALSE(format.is_plain());
  EXPECT_EQ(
      marked(render_chat(format, kTurns, false, jinja::Value::list({jinja::Value::text("t")}))),
      "tS.Q1.[A1.]Q2.[A2.]");
  expect_error(ErrorKind::model, "a chat template for tools alone",
               [&] { render_chat(format, kTurns); });
}

TEST(ChatFormat, BuiltInOnes) {
  const auto rendered = [&](const char* name, bool follows = false) {
    const RenderedChat chat = render_chat(named_format(name), kTurns, follows);
    EXPECT_EQ(chat.untrainable, 0);
    return marked(chat);
  };
  EXPECT_EQ(rendered("chatml"),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ1<|im_end|>\n"
            "<|im_start|>assistant\n[A1<|im_end|>]\n<|im_start|>user\nQ2<|im_end|>\n"
            "<|im_start|>assistant\n[A2<|im_end|>]\n");
  EXPECT_EQ(rendered("llama2"),
            "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nQ1 [/INST][ A1 </s>]<s>[INST] Q2 [/INST][ A2 </s>]");
  EXPECT_EQ(rendered("llama3"),
            "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nQ1<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[A1<|eot_id|>]"
            "<|start_header_id|>user<|end_header_id|>\n\nQ2<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[A2<|eot_id|>]");
  EXPECT_EQ(rendered("mistral"), "<s>[INST] S\n\nQ1 [/INST][ A1</s>][INST] Q2 [/INST][ A2</s>]");
  EXPECT_EQ(rendered("zephyr"),
            "<|system|>\nS</s>\n<|user|>\nQ1</s>\n<|assistant|>\n[A1</s>]\n"
            "<|user|>\nQ2</s>\n<|assistant|>\n[A2</s>]\n");
  EXPECT_EQ(rendered("alpaca"),
            "<s>S\n\n### Instruction:\nQ1\n\n### Response:\n[A1</s>]\n\n"
            "### Instruction:\nQ2\n\n### Response:\n[A2</s>]\n\n");
  EXPECT_EQ(rendered("alpaca", true),
            "<s>S\n\n### Instruction:\nQ1\n\n### Response:\nA1</s>\n\n"
            "### Instruction:\nQ2\n\n### Response:\nA2</s>\n\n### Response:\n");
  const std::vector<Message> tool = {{"user", "Q"}, {"tool", "T"}};
  for (const char* name : {"llama2", "mistral", "alpaca"}) {
    expect_error(ErrorKind::data, "a message from \"tool\"",
                 [&] { render_chat(named_format(name), tool); });
  }
}

// Whichever way its answers would be found: a prompt is for generation, and they are not looked
// for.
TEST(ChatFormat, NothingOfAPromptIsTrained) {
  const ChatFormat generated = own_format(
      "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}");
  // Its answers cannot be found.
  const ChatFormat lost =
      own_format("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}");
  const std::vector<Message> turns = {{"user", "Q"}, {"assistant", "A"}, {"user", "Q"}};
  for (const ChatFormat& format :
       {named_format("chatml"), named_format("plain"), generated, lost}) {
    const RenderedChat chat = render_chat(format, turns, true);
    EXPECT_EQ(marked(chat).find('['), std::string::npos) << marked(chat);
    EXPECT_EQ(chat.untrainable, 0);
  }
  EXPECT_EQ(render_chat(lost, turns).untrainable, 1);
}

TEST(ChatFormat, GoldenConversations) {
  const Json expected = golden();
  TokenizerData data = golden_data("smollm");
  data.eos = 2;  // <|im_end|>
  data.chat_template = expected["template"].get<std::string>();
  const Tokenizer tokenizer(data);
  const ChatFormat format = chat_format("auto", data, {});
  for (size_t i = 0; i < expected["chats"].size(); ++i) {
    std::vector<Message> messages = messages_of(expected["chats"][i]);
    const auto encoded = encode_segments(tokenizer, render_chat(format, messages).segments);
    EXPECT_EQ(encoded.ids, expected["chat_ids"][i].get<Ids>());
    messages.pop_back();
    const auto prompt = encode_segments(tokenizer, render_chat(format, messages, true).segments);
    EXPECT_EQ(prompt.ids, expected["prompt_ids"][i].get<Ids>());
  }
}

TEST(ChatFormat, TrainsTheAnswersAndTheirEnds) {
  const Tokenizer tokenizer = smollm_tokenizer();
  std::vector<Message> messages = {
      {"user", "Hi"}, {"assistant", "One."}, {"user", "More"}, {"assistant", "\nTwo"}};
  const auto encode = [&](const char* name) {
    const ChatFormat format = chat_format(name, tokenizer.data(), {});
    return encode_segments(tokenizer, render_chat(format, messages).segments);
  };
  EXPECT_EQ(trained_text(tokenizer, encode("chatml")), "One.<|im_end|>|\nTwo<|im_end|>");
  messages[1].trained = false;
  EXPECT_EQ(trained_text(tokenizer, encode("chatml")), "\nTwo<|im_end|>");
  messages[1].trained = true;
  const auto plain = encode("plain");
  EXPECT_EQ(trained_text(tokenizer, plain), "One.<|im_end|>|\nTwo<|im_end|>");
  EXPECT_EQ(tokenizer.decode(plain.ids, false), "Hi\n\nOne.<|im_end|>More\n\n\nTwo<|im_end|>");
  EXPECT_EQ(plain.unended, 0);
  TokenizerData endless = tokenizer.data();
  endless.eos = -1;
  expect_error(ErrorKind::model, "no end-of-text",
               [&] { render_chat(chat_format("plain", endless, {}), messages); });
}

TEST(ChatFormat, TrainsWhatIsGenerated) {
  const ChatFormat format = own_format(
      "{% for m in messages %}{% if m.role == 'assistant' %}A: {% generation %}{{ m.content }}"
      "{{ eos_token }}{% endgeneration %}{{ '\\n' }}{% else %}Q: {{ m.content }}\n{% endif %}{% "
      "endfor %}"
      "{% if add_generation_prompt %}A: {% endif %}");
  EXPECT_EQ(marked(render_chat(format, kTurns)), "Q: S\nQ: Q1\nA: [A1</s>]\nQ: Q2\nA: [A2</s>]\n");
  std::vector<Message> messages = kTurns;
  messages[2].trained = false;
  EXPECT_EQ(marked(render_chat(format, messages)), "Q: S\nQ: Q1\nA: A1</s>\nQ: Q2\nA: [A2</s>]\n");
}

TEST(ChatFormat, SaysWhichAnswersAreNotGenerated) {
  const auto untrainable = [](const std::string& answer, std::vector<Message> messages) {
    const RenderedChat chat =
        render_chat(own_format("{% for m in messages %}{% if m.role == 'assistant' %}A: " + answer +
                               "{% else %}Q: {{ m.content }}\n{% endif %}{% endfor %}"
                               "{% if add_generation_prompt %}A: {% endif %}"),
                    messages);
    return chat.untrainable;
  };
  const std::string always = "{% generation %}{{ m.content }}\n{% endgeneration %}";
  const std::string never = "{{ m.content }}\n{% if false %}" + always + "{% endif %}";
  const std::string second =
      "{% if m.content == 'A2' %}" + always + "{% else %}" + "{{ m.content }}\n{% endif %}";
  EXPECT_EQ(untrainable(always, kTurns), 0);
  EXPECT_EQ(untrainable(never, kTurns), 2);
  EXPECT_EQ(untrainable(second, kTurns), 1);
  // In as many parts as there are answers.
  const std::string twice =
      "{% if m.content == 'A2' %}{% generation %}A{% endgeneration %}-{% generation %}2\n"
      "{% endgeneration %}{% else %}{{ m.content }}\n{% endif %}";
  EXPECT_EQ(untrainable(twice, kTurns), 1);
  // Context is not missed, nor is what says nothing.
  std::vector<Message> messages = kTurns;
  messages[2].trained = false;
  EXPECT_EQ(untrainable(second, messages), 0);
  EXPECT_EQ(untrainable(never, messages), 1);
  messages[2] = {"assistant", ""};
  EXPECT_EQ(untrainable(never, messages), 1);
}

// Before the template has seen them: the message around a field is a value too.
TEST(ChatFormat, MessagesBeyondTheLimitsOfValuesAreTheDatas) {
  jinja::Value deep = jinja::None{};
  for (int i = 0; i < jinja::kMaxDepth; ++i) deep = jinja::Value::list({deep});
  Message message{"user", "q"};
  message.fields.emplace_back("x", deep);
  expect_error(ErrorKind::data, "nested more than 100 deep", [&] {
    render_chat(own_format("{{ messages }}"), {&message, 1});
  });
}

TEST(ChatFormat, SaysWhichAnswersCannotBeTrained) {
  // Earlier answers lose their thoughts, as in Qwen 3.
  const ChatFormat format = own_format(
      "{% for m in messages %}{% if m.role == 'assistant' %}A: {{ '' if not loop.last else "
      "'<think></think>' }}{{ m.content ~ eos_token }}{% else %}Q: {{ m.content }}\n{% endif %}"
      "{% endfor %}{% if add_generation_prompt %}A: {% endif %}");
  const RenderedChat chat = render_chat(format, kTurns);
  EXPECT_EQ(marked(chat), "Q: S\nQ: Q1\nA: A1</s>Q: Q2\nA: [<think></think>A2</s>]");
  EXPECT_EQ(chat.untrainable, 1);
  // A template that refuses the beginning of a conversation.
  const std::vector<Message> greeting = {{"assistant", "Hi"}, {"user", "Q"}, {"assistant", "A"}};
  const ChatFormat picky = own_format(
      "{{ messages[1].role.upper() }}{% for m in messages %}{{ m.content ~ eos_token }}{% endfor "
      "%}");
  EXPECT_EQ(marked(render_chat(picky, greeting)), "USERHi</s>Q</s>[A</s>]");
  EXPECT_EQ(render_chat(picky, greeting).untrainable, 1);
}

// As those of DeepSeek R1 and QwQ: the prompt ends in <think>, thoughts are left out of answers.
TEST(ChatFormat, TrainsAnswersThatDoNotBeginAsThePromptEnds) {
  const ChatFormat format = own_format(
      "{% for m in messages %}{% if m.role == 'assistant' %}A: {{ m.content.split('</think>')[-1] "
      "~ eos_token }}\n{% else %}Q: {{ m.content }}\n{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}A: <think>\n{% endif %}");
  std::vector<Message> messages = kTurns;
  messages[4].content = "Let me see.</think>A2";
  const RenderedChat chat = render_chat(format, messages);
  EXPECT_EQ(marked(chat), "Q: S\nQ: Q1\nA: [A1</s>]\nQ: Q2\nA: [A2</s>]\n");
  EXPECT_EQ(chat.untrainable, 0);
  EXPECT_EQ(chat.after_part_of_prompt, 2);
  // What the template writes before the text of an answer must be in the prompt, too.
  const RenderedChat other = render_chat(
      own_format("{% for m in messages %}{{ m.role }}{{ ' says ' if m.role == 'assistant' }}"
                 "{{ m.content ~ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: "
                 "{% endif %}"),
      messages);
  EXPECT_EQ(other.untrainable, 2);
}

TEST(ChatFormat, TrainsAnAnswerThatBeginsTheConversation) {
  // SmolLM2's template writes a default system prompt before the first message, and nothing where
  // there is none.
  const ChatFormat format = own_format(
      "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}S: default\n"
      "{% endif %}{{ m.role + ': ' + m.content + eos_token }}\n{% endfor %}"
      "{% if add_generation_prompt %}assistant: {% endif %}");
  const RenderedChat chat = render_chat(
      format, std::vector<Message>{{"assistant", "Hi"}, {"user", "Q"}, {"assistant", "A"}});
  EXPECT_EQ(marked(chat), "S: default\nassistant: [Hi</s>]\nuser: Q</s>\nassistant: [A</s>]\n");
  EXPECT_EQ(chat.untrainable, 0);
  // What the template writes behind the prompt is part of the answer, as in any other turn.
  const std::vector<Message> greeting = {{"assistant", "Hi"}};
  EXPECT_EQ(
      marked(render_chat(own_format("{% for m in messages %}A:{{ ' ' + m.content + eos_token }}"
                                    "{% endfor %}{% if add_generation_prompt %}A:{% endif %}"),
                         greeting)),
      "A:[ Hi</s>]");
  // The first text of a value need not be the answer's.
  EXPECT_EQ(render_chat(own_format("{{ messages[0].role }}{{ 7 }}{% for m in messages %}"
                                   "{{ m.content + eos_token }}{% endfor %}"),
                        greeting)
                .untrainable,
            1);
}

TEST(ChatFormat, SpecialTokensInContentsStayText) {
  const Tokenizer tokenizer = smollm_tokenizer();
  const std::vector<Message> messages = {{"user", "<|im_end|>"}, {"assistant", "<|im_start|>"}};
  const ChatFormat format = chat_format("chatml", tokenizer.data(), {});
  const auto encoded = encode_segments(tokenizer, render_chat(format, messages).segments);
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
  const std::vector<Segment> with_two = {{"<|begin_of_text|><|begin_of_text|>", false, true},
                                         {"hello<|im_end|>", true, true}};
  for (const auto& [segments, doubled] :
       {std::pair(bare, false), std::pair(with_bos, false), std::pair(with_two, true)}) {
    const auto encoded = encode_segments(llama3, segments);
    EXPECT_EQ(encoded.ids[0], llama3.bos());
    EXPECT_EQ(std::count(encoded.ids.begin(), encoded.ids.end(), llama3.bos()), 1);
    EXPECT_EQ(encoded.trained[0], 0);
    EXPECT_EQ(encoded.trained.size(), encoded.ids.size());
    EXPECT_EQ(encoded.dropped_bos, doubled);
  }
  EXPECT_EQ(encode_segments(llama3, with_bos).unended, 1);
  EXPECT_EQ(encode_segments(llama3, with_two).unended, 0);
}

TEST(ChatFormat, Dates) {
  const jinja::DateTime leap_day{2024, 2, 29, 0, 0, 0};
  EXPECT_EQ(chat_clock(parse_chat_date("2024-02-29")), leap_day);
  EXPECT_GE(chat_clock(parse_chat_date("today")).year, 2024);
  for (const char* bad :
       {"", "yesterday", "2024-2", "2024-02-30", "2023-02-29", "2024-13-01", "2024-01-01-01"}) {
    expect_error(ErrorKind::usage, "is not a date", [&] { parse_chat_date(bad); });
  }
}

}  // namespace
}  // namespace jackscrew
