// A tokenizer as a GGUF file has it: the reverse of gguf_tokenizer_data().
#pragma once

#include <string>
#include <vector>

#include "formats/gguf.h"
#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// Byte-level BPE becomes "gpt2" with the name of its pre-tokenizer, SentencePiece's BPE "llama"
// with scores that rank tokens as the merges do. Throws Error(model) for what has no name there.
GgufTokenizerMetadata to_gguf_tokenizer(const TokenizerData& data);

// A text that `data` reads otherwise when it comes back from such a file; empty: none was found. A
// file says less than a tokenizer.json of what goes before a text, and behind special tokens.
std::string changed_in_gguf(const TokenizerData& data, const GgufTokenizerMetadata& written);

}  // namespace jackscrew
