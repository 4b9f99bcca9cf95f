// Tokenizers as tokenizer.json and tokenizer_config.json hold them.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace jackscrew {

// Reads the text of a tokenizer.json that holds BPE. `file_name` is for messages. Throws
// Error(model) when the text is malformed or uses a construct that is not supported, which it
// names. `eos`, `pad`, `unk` and the chat template are not in that file and stay unset; `bos` is
// set where the post-processor adds it.
TokenizerData parse_tokenizer_json(std::string_view text, const std::string& file_name);

// Adds what a tokenizer_config.json says: bos, eos, pad, unk, whether BOS is added, the chat
// template. Throws Error(model).
void apply_tokenizer_config(TokenizerData& data, std::string_view text,
                            const std::string& file_name);

// Adds what a tokenizer_config.json says of a vocabulary that has no tokenizer.json: its added
// tokens, and of SentencePiece's where a space goes before a text: with `legacy` (the default)
// before every text and behind every special token, without it only at the beginning and only where
// there is none, as transformers does. Throws Error(model).
void apply_model_config(TokenizerData& data, std::string_view text, const std::string& file_name);

// The text of a tokenizer.json that encodes exactly as Tokenizer(data) with parse_special. Throws
// Error(model) when the vocabulary is not valid UTF-8.
std::string to_tokenizer_json(const TokenizerData& data);

// The text of the tokenizer_config.json beside it.
std::string to_tokenizer_config_json(const TokenizerData& data);

}  // namespace jackscrew
