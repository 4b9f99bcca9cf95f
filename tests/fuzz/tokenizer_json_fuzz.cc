// tokenizer.json; and the same bytes as each of the files beside a vocabulary.
#include "text/tokenizer/tokenizer_json.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/tokenizer_use.h"
#include "text/tokenizer/tokenizer_config.h"

void jackscrew::parse_input(std::string_view bytes) {
  accepts([&] { use_tokenizer(parse_tokenizer_json(bytes, "tokenizer.json")); });
  TokenizerData data;
  data.tokens = {"<s>", "</s>", "a", "b", "ab"};
  data.merges = {{"a", "b"}};
  data.spelling = Spelling::text;
  const auto apply = [&](const TokenizerConfigFiles& files) {
    accepts([&] {
      TokenizerData changed = data;
      apply_tokenizer_config(changed, files, VocabularyFile::tokenizer_model);
      use_tokenizer(std::move(changed));
    });
  };
  const NamedText text = {"input.json", std::string(bytes)};
  const NamedText config = {"tokenizer_config.json",
                            R"({"eos_token": "</s>", "extra_special_tokens": ["c"]})"};
  apply({.config = text, .special_tokens_map = {}, .added_tokens = {}});
  apply({.config = config, .special_tokens_map = text, .added_tokens = {}});
  apply({.config = config, .special_tokens_map = {}, .added_tokens = text});
}
