#include "text/tokenizer/tokenizer_config.h"

#include <gtest/gtest.h>

#include "tests/text/fixture.h"
#include "text/tokenizer/tokenizer_files.h"

namespace jackscrew {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

constexpr int32_t kCount = 600;  // tokens of smollm_tokenizer.json
constexpr int32_t kEndOfText = 0, kStart = 1, kEnd = 2;

// Expectations are what transformers 5.17 makes of the same files; tools/tokenizer_parity.py
// compares with it live.
class TokenizerDirectory : public DirectoryTest {
 protected:
  TokenizerDirectory() {
    write("tokenizer.json", read_text(text_data() / "smollm_tokenizer.json"));
  }
  TokenizerData read() const {
    return parse_tokenizer_texts(read_tokenizer_texts(directory_), directory_).value();
  }
  Ids encode(const std::string& text) const { return Tokenizer(read()).encode(text, true); }
  std::string described(const char* content, const char* more = "") const {
    return fmt::format(R"({{"content": "{}", "special": true{}}})", content, more);
  }
};

TEST_F(TokenizerDirectory, HasNamedTokensAndTemplates) {
  EXPECT_EQ(read().eos, -1);
  write("tokenizer_config.json", R"({"bos_token": "<|im_start|>",
      "eos_token": {"content": "<|im_end|>"}, "pad_token": null,
      "chat_template": [{"name": "rag", "template": "r"}, {"name": "tool_use", "template": "t"},
                        {"name": "default", "template": "d"}]})");
  EXPECT_EQ(read().bos, kStart);
  EXPECT_EQ(read().eos, kEnd);
  EXPECT_EQ(read().pad, -1);
  EXPECT_FALSE(read().add_bos);
  EXPECT_EQ(read().chat_template, "d");
  EXPECT_EQ(read().tool_template, "t");
  write("chat_template.jinja", "j");
  EXPECT_EQ(read().chat_template, "j");
  EXPECT_EQ(read().tool_template, "");  // files go before the list as a whole
  fs::create_directories((directory_ / kToolTemplateFile).parent_path());
  write(kToolTemplateFile, "tj");
  EXPECT_EQ(read().chat_template, "j");
  EXPECT_EQ(read().tool_template, "tj");
  write(kDefaultTemplateFile, "dj");
  EXPECT_EQ(read().chat_template, "dj");
  for (const char* role : {"bos_token", "eos_token", "unk_token"}) {
    write("tokenizer_config.json", fmt::format(R"({{"{}": "<nope>"}})", role));
    expect_error(ErrorKind::model,
                 fmt::format("tokenizer_config.json: the {} \"<nope>\" is not in", role),
                 [&] { read(); });
  }
}

// An adapter's directory may have a configuration and no tokenizer.
TEST_F(TokenizerDirectory, GivesItsTemplatesWithoutATokenizer) {
  fs::remove(directory_ / "tokenizer.json");
  const auto applied = [&] {
    TokenizerData data;
    data.chat_template = "model's";
    data.tool_template = "model's tools";
    apply_templates(data, directory_);
    return data.chat_template + ", " + data.tool_template;
  };
  EXPECT_EQ(applied(), "model's, model's tools");
  write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(applied(), "model's, model's tools");
  write("tokenizer_config.json", R"({"chat_template": "c"})");
  EXPECT_EQ(applied(), "c, ");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"}]})");
  EXPECT_EQ(applied(), ", t");
  write("chat_template.jinja", "j");
  EXPECT_EQ(applied(), "j, ");
  write("tokenizer_config.json", R"({"chat_template": 1})");
  expect_error(ErrorKind::model, "tokenizer_config.json: chat_template is neither", applied);
}

TEST_F(TokenizerDirectory, TakesFromItsOwnFileWhatGoesBeforeAText) {
  write("tokenizer_config.json",
        R"({"bos_token": "<|im_start|>", "add_bos_token": true, "add_eos_token": true})");
  EXPECT_FALSE(read().add_bos);
  Json own = Json::parse(read_text(text_data() / "smollm_tokenizer.json"));
  own["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<|im_start|>"}}}}, {{"Sequence", {{"id", "A"}}}}}}};
  write("tokenizer.json", own.dump());
  write("tokenizer_config.json", R"({"bos_token": "<|endoftext|>", "add_bos_token": false})");
  EXPECT_TRUE(read().add_bos);
  EXPECT_EQ(read().bos, kStart);
  write("tokenizer_config.json", R"({"split_special_tokens": true})");
  expect_error(ErrorKind::model, "split_special_tokens is not supported", [&] { read(); });
}

TEST_F(TokenizerDirectory, AddsTheTokensOfTheConfiguration) {
  const auto decoder = [&](const std::string& entries) {
    write("tokenizer_config.json", R"({"added_tokens_decoder": {)" + entries + "}}");
  };
  decoder(R"("601": {"content": "<y>"}, "600": )" + described("<x>") + R"(, "1": )" +
          described("<|im_start|>") + R"(, "2": {"content": "<|im_end|>", "special": false})");
  EXPECT_EQ(encode("<x><y><|im_end|>"), (Ids{kCount, kCount + 1, kEnd}));
  const TokenizerData data = read();
  EXPECT_EQ(data.kinds[kCount], TokenKind::special);
  EXPECT_EQ(data.kinds[kCount + 1], TokenKind::added);
  EXPECT_EQ(data.kinds[kStart], TokenKind::special);
  EXPECT_EQ(data.kinds[kEnd], TokenKind::added);
  EXPECT_EQ(data.normalized_literals, (std::set<int32_t>{kEnd, kCount + 1}));
  const auto refuse = [&](const std::string& part, const std::string& entries) {
    decoder(entries);
    expect_error(ErrorKind::model, "tokenizer_config.json: " + part, [&] { read(); });
  };
  refuse("the added token \"<|im_end|>\" with lstrip",
         R"("2": )" + described("<|im_end|>", R"(, "lstrip": true)"));
  refuse("added_tokens_decoder gives the token \"<|im_end|>\" the id 3, the vocabulary 2",
         R"("3": )" + described("<|im_end|>"));
  refuse("added_tokens_decoder gives the token \"<x>\" the id 602, the vocabulary 600",
         R"("602": )" + described("<x>"));
  refuse("the tokens \"<|im_end|>\" and \"<x>\" both have id 2", R"("2": )" + described("<x>"));
  refuse("added_tokens_decoder has the id \"x\"", R"("x": )" + described("<x>"));
  refuse("added_tokens_decoder gives the token \"<x>\" the id 4294967898",
         R"("4294967898": )" + described("<x>"));
}

TEST_F(TokenizerDirectory, MakesNamedTokensSpecial) {
  const auto length = [&] { return std::ssize(read().tokens); };
  write("tokenizer_config.json", R"({"pad_token": "<pad>", "sep_token": "<sep>",
      "extra_special_tokens": ["<x>", "he"], "additional_special_tokens": ["<y>"]})");
  EXPECT_EQ(length(), kCount + 3);
  EXPECT_EQ(read().pad, kCount + 1);
  EXPECT_EQ(encode("<sep><pad><x>"), (Ids{kCount, kCount + 1, kCount + 2}));
  const int32_t he = *Tokenizer(read()).find_special("he");
  EXPECT_LT(he, kCount);
  EXPECT_EQ(encode("he<y>").front(), he);
  write("tokenizer_config.json", R"({"additional_special_tokens": [{"content": "<y>"}]})");
  EXPECT_EQ(encode("<y>"), Ids{kCount});
  // What a model has for purposes of its own must be there.
  write("tokenizer_config.json", R"({"image_token": "he", "extra_special_tokens": {
      "eot_token": "<|im_end|>"}})");
  EXPECT_EQ(length(), kCount);
  EXPECT_EQ(Tokenizer(read()).find_special("he"), he);
  write("tokenizer_config.json", R"({"image_token": "<image>"})");
  expect_error(ErrorKind::model, "the image_token \"<image>\"", [&] { read(); });
  write("tokenizer_config.json", R"({"extra_special_tokens": {"image_token": "<image>"}})");
  expect_error(ErrorKind::model, "the image_token \"<image>\"", [&] { read(); });
  write("tokenizer_config.json", R"({"extra_special_tokens": [3]})");
  expect_error(ErrorKind::model, "tokenizer_config.json: ", [&] { read(); });
}

TEST_F(TokenizerDirectory, KnowsTokensByTheirNames) {
  using Names = std::map<std::string, int32_t>;
  EXPECT_EQ(read().named_tokens, Names{});
  const auto named = [&](const std::string& config) {
    write("tokenizer_config.json", config);
    return read().named_tokens;
  };
  EXPECT_EQ(named(R"({"eos_token": "<|im_end|>", "add_bos_token": false, "boi": "he"})"), Names{});
  // Members of the object need no ending.
  EXPECT_EQ(named(R"({"sep_token": "<sep>", "image_token": "<|im_start|>", "mask_token": null,
      "extra_special_tokens": {"boi": "<|im_end|>", "eot_token": {"content": "<|endoftext|>"}}})"),
            (Names{{"boi", kEnd},
                   {"eot_token", kEndOfText},
                   {"image_token", kStart},
                   {"sep_token", kCount}}));
  const TokenizerData data = read();
  write("tokenizer.json", to_tokenizer_json(data));
  EXPECT_EQ(named(to_tokenizer_config_json(data)), data.named_tokens);
  // They go before the keys beside the object.
  EXPECT_EQ(named(R"({"eos_token": "<|im_end|>", "image_token": "he",
      "extra_special_tokens": {"eos_token": "<|im_start|>", "image_token": "<|endoftext|>"}})"),
            (Names{{"image_token", kEndOfText}}));
  EXPECT_EQ(read().eos, kStart);
  EXPECT_FALSE(Tokenizer(read()).find_special("he").has_value());
  EXPECT_EQ(named(R"({"eos_token": "<|im_end|>", "extra_special_tokens": {"eos_token": null}})"),
            Names{});
  EXPECT_EQ(read().eos, kEnd);
  // One that the vocabulary lacks is added, as transformers does; of two the order is lost.
  EXPECT_EQ(named(R"({"extra_special_tokens": {"boi": "<boi>"}})"), (Names{{"boi", kCount + 1}}));
  write("tokenizer_config.json", R"({"extra_special_tokens": {"boi": "<boi>", "eoi": "<eoi>"}})");
  expect_error(ErrorKind::model, "the eoi \"<eoi>\"", [&] { read(); });
}

TEST_F(TokenizerDirectory, ReadsWhatOlderProgramsWrote) {
  write("special_tokens_map.json", R"({"eos_token": )" + described("<|endoftext|>") +
                                       R"(, "pad_token": "<y>",
      "additional_special_tokens": ["<x>"]})");
  EXPECT_EQ(read().eos, kEndOfText);
  EXPECT_EQ(read().pad, kCount);
  EXPECT_EQ(encode("<y><x>"), (Ids{kCount, kCount + 1}));
  write("tokenizer_config.json",
        R"({"eos_token": "<|im_end|>", "additional_special_tokens": ["<z>"]})");
  EXPECT_EQ(read().eos, kEndOfText);  // the map goes before the configuration
  write("added_tokens.json", R"({"<x>": 601, "<y>": 600, "<w>": 602, "<|im_end|>": 2})");
  EXPECT_EQ(encode("<y><x><w>"), (Ids{kCount, kCount + 1, kCount + 2}));
  TokenizerData data = read();
  EXPECT_EQ(data.kinds[kCount], TokenKind::special);
  // The map's list is not taken beside the configuration's.
  EXPECT_EQ(std::ssize(data.tokens), kCount + 4);
  EXPECT_EQ(data.tokens.back(), "<z>");
  EXPECT_EQ(data.kinds[kCount + 1], TokenKind::added);
  EXPECT_EQ(data.kinds[kCount + 2], TokenKind::added);
  EXPECT_EQ(data.kinds[kEnd], TokenKind::special);  // as tokenizer.json has it
  // With added_tokens_decoder neither of the two counts.
  write("tokenizer_config.json", R"({"eos_token": "<|im_end|>", "added_tokens_decoder": {}})");
  EXPECT_EQ(read().eos, kEnd);
  EXPECT_EQ(std::ssize(read().tokens), kCount);
  write("tokenizer_config.json", "{}");
  write("special_tokens_map.json", R"({"unk_token": "<nope>"})");
  const std::string where = directory_.string();
  expect_message(ErrorKind::model,
                 where + "/tokenizer_config.json with " + where + "/special_tokens_map.json with " +
                     where +
                     "/added_tokens.json: the unk_token \"<nope>\" is not in the vocabulary",
                 [&] { read(); });
  write("added_tokens.json", R"({"<x>": "600"})");
  expect_error(ErrorKind::model, "added_tokens.json: \"600\" is not an integer", [&] { read(); });
  write("special_tokens_map.json", "[]");
  expect_error(ErrorKind::model, "special_tokens_map.json: an object", [&] { read(); });
}

TEST_F(TokenizerDirectory, TakesOneOfTwoLists) {
  const auto added = [&](const std::string& config, const std::string& map) {
    write("tokenizer_config.json", config);
    write("special_tokens_map.json", map);
    const TokenizerData data = read();
    return std::vector<std::string>(data.tokens.begin() + kCount, data.tokens.end());
  };
  using Added = std::vector<std::string>;
  const std::string older = R"({"additional_special_tokens": ["<z>"]})";
  const std::string newer = R"({"extra_special_tokens": ["<z>"]})";
  const std::string other = R"({"additional_special_tokens": ["<x>"]})";
  EXPECT_EQ(added(older, other), Added{"<z>"});
  EXPECT_EQ(added(newer, other), Added{"<z>"});
  EXPECT_EQ(added("{}", other), Added{"<x>"});
  // Only lists of the new name are joined, each token once.
  const std::string more = R"({"extra_special_tokens": ["<x>", "<z>"]})";
  EXPECT_EQ(added(older, more), (Added{"<z>", "<x>"}));
  EXPECT_EQ(added(newer, more), (Added{"<z>", "<x>"}));
  // A token of the model's own stays the configuration's, too.
  EXPECT_EQ(added(R"({"image_token": "he", "sep_token": "<|im_start|>"})",
                  R"({"image_token": "<|im_end|>", "sep_token": "<|im_end|>"})"),
            Added{});
  EXPECT_NE(read().named_tokens["image_token"], kEnd);
  EXPECT_EQ(read().named_tokens["sep_token"], kEnd);
}

TEST_F(TokenizerDirectory, SaysWhatIsNoTokenAndNoTemplate) {
  const auto refuse = [&](const std::string& config, const std::string& part) {
    write("tokenizer_config.json", config);
    expect_error(ErrorKind::model, "/tokenizer_config.json: " + part, [&] { read(); });
  };
  const std::string expected = ", expected a text or an object with its \"content\"";
  refuse(R"({"eos_token": 2})", "eos_token is number" + expected);
  refuse(R"({"eos_token": {"content": 2}})", "eos_token is object" + expected);
  refuse(R"({"extra_special_tokens": [null]})", "extra_special_tokens is null" + expected);
  refuse(R"({"added_tokens_decoder": {"2": {}}})", "added_tokens_decoder is object" + expected);
  refuse(R"({"added_tokens_decoder": {"2": "a"}})",
         "added_tokens_decoder: the entry of id 2 is not an object");
  for (const char* chat : {"3", R"({"default": "a"})", "[3]", R"([{"name": "default"}])"}) {
    refuse(fmt::format(R"({{"chat_template": {}}})", chat),
           "chat_template is neither a text nor a list of named texts");
  }
}

// An id that the vocabulary skips is a token's once the configuration gives it one.
TEST_F(TokenizerDirectory, FindsTokensThatTakeUnusedIds) {
  Json own = Json::parse(read_text(text_data() / "smollm_tokenizer.json"));
  own["added_tokens"].push_back(Json::parse(described("<last>")));
  own["added_tokens"].back()["id"] = kCount + 1;
  write("tokenizer.json", own.dump());
  write("tokenizer_config.json",
        R"({"eos_token": "<x>", "added_tokens_decoder": {"600": )" + described("<x>") + "}}");
  EXPECT_EQ(read().eos, kCount);
  EXPECT_EQ(std::ssize(read().tokens), kCount + 2);
}

}  // namespace
}  // namespace jackscrew
