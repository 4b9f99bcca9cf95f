// tokenizer.json; and the same bytes as each of the files beside a vocabulary.
#include "text/tokenizer_json.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/tokenizer_use.h"
#include "text/tokenizer_config.h"

void jackscrew::parse_input(std::string_view bytes) {
  accepts([&] { use_tokenizer(parse_tokenizer_json(bytes, "tokenizer.json")); });
  TokenizerData data;
  data.tokens = {"<s>", "</s>", "a", "b", "ab"};
  data.merges = {{"a", "b"}};
  data.spelling = Spelling::text;
  const auto apply = [&](const std::string& config) {
    TokenizerData changed = data;
    apply_tokenizer_config(changed, config, "tokenizer_config.json",
                           VocabularyFile::tokenizer_model);
    use_tokenizer(std::move(changed));
  };
  accepts([&] { apply(std::string(bytes)); });
  const std::string config = R"({"eos_token": "</s>", "extra_special_tokens": ["c"]})";
  accepts([&] { apply(with_special_tokens_map(config, bytes, "special_tokens_map.json")); });
  accepts([&] { apply(with_added_tokens(config, data, bytes, "added_tokens.json")); });
}
