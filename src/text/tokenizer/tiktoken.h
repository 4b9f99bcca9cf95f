// Llama 3's own tokenizer.model: each line has a token's bytes in base64, and its rank.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// Whether the bytes of a tokenizer.model begin with such a line; SentencePiece's never do.
bool is_tiktoken(std::string_view bytes);

// The file's tokens, with their ranks as ids, followed by Llama 3's 256 special tokens; neither
// these nor the pre-tokenizer's pattern are in the file. `file_name` is for messages. Throws
// Error(model).
TokenizerData parse_tiktoken(std::string_view text, const std::string& file_name);

}  // namespace jackscrew
