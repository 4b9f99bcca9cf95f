// Writes a tokenizer for a GGUF file: the reverse of gguf_tokenizer_data().
#pragma once

#include <string>

#include "formats/gguf_llama.h"
#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// Byte-level BPE becomes "gpt2" with the name of its pre-tokenizer; SentencePiece's BPE becomes
// "llama" with scores that rank tokens as the merges do. Throws Error(model) for a tokenizer that
// GGUF has no name for.
GgufTokenizerMetadata to_gguf_tokenizer(const TokenizerData& data);

// A text that the tokenizer encodes differently after it has been written to such a file and read
// back as llama.cpp does; empty: none was found. A GGUF file says less than a tokenizer.json about
// what goes before a text and after special tokens.
std::string changed_in_gguf(const Tokenizer& before, const GgufTokenizerMetadata& written);

}  // namespace jackscrew
