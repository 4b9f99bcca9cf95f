// tokenizer.json; and the same bytes as a tokenizer_config.json beside a vocabulary.
#include "text/tokenizer_json.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/tokenizer_use.h"

void jackscrew::parse_input(std::string_view bytes) {
  accepts([&] { use_tokenizer(parse_tokenizer_json(bytes, "tokenizer.json")); });
  TokenizerData data;
  data.tokens = {"<s>", "</s>", "a", "b", "ab"};
  data.merges = {{"a", "b"}};
  data.spelling = Spelling::text;
  accepts([&] {
    apply_model_config(data, bytes, "tokenizer_config.json");
    apply_tokenizer_config(data, bytes, "tokenizer_config.json");
    use_tokenizer(std::move(data));
  });
}
