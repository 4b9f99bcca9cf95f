// What every tokenizer that was read must stand: texts there and back.
#pragma once

#include <string>

#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_json.h"

namespace jackscrew {

inline void use_tokenizer(TokenizerData data) {
  const Tokenizer tokenizer(std::move(data));
  for (const char* text :
       {"", "Say  it's 12345\n\n", " \xC3\xA9\xFF<s><|end|>", "\xE2\x96\x81 a"}) {
    for (const bool parse_special : {false, true}) {
      tokenizer.decode(tokenizer.encode(text, parse_special), parse_special);
    }
  }
  to_tokenizer_json(tokenizer.data());
  to_tokenizer_config_json(tokenizer.data());
}

}  // namespace jackscrew
