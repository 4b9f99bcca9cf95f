// Reads and writes tokenizer.json.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// Parses a tokenizer.json that holds BPE. `file_name` is for messages. Throws Error(model) when the
// text is malformed or uses an unsupported construct, naming it. `eos`, `pad`, `unk` and the chat
// template are not in that file and stay unset; `bos` is set where the post-processor adds it.
TokenizerData parse_tokenizer_json(std::string_view text, const std::string& file_name);

// The text of a tokenizer.json that encodes exactly as Tokenizer(data) with parse_special. Throws
// Error(model) when the vocabulary is not valid UTF-8.
std::string to_tokenizer_json(const TokenizerData& data);

// The text of the tokenizer_config.json beside it.
std::string to_tokenizer_config_json(const TokenizerData& data);

}  // namespace jackscrew
