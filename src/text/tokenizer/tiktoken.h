// Llama 3's own tokenizer.model: lines of a token's bytes in base64 and its rank.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// Whether the bytes of a tokenizer.model begin like such lines; SentencePiece's never do.
bool is_tiktoken(std::string_view bytes);

// The tokens of the file, its rank being the id, and behind them Llama 3's 256 special tokens,
// which the file does not hold, no more than it holds the pattern. `file_name` is for messages.
// Throws Error(model).
TokenizerData parse_tiktoken(std::string_view text, const std::string& file_name);

}  // namespace jackscrew
