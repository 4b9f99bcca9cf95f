// SentencePiece vocabularies: tokenizer.model, and the same pieces in GGUF files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// A piece's type, numbered as in the file; GGUF's token types are the same.
enum class PieceType : int64_t { normal = 1, unknown, control, user_defined, unused, byte };

// Throws Error(model) for a number that is not a type.
TokenKind token_kind(PieceType type);

struct Piece {
  std::string text;
  double score = 0.0;
  PieceType type = PieceType::normal;
};

// A BPE vocabulary from pieces: the higher a piece's score, the earlier it is merged. With
// `add_dummy_prefix` a space is put before every text and after every special token, as llama.cpp
// and the published tokenizer.json files do (and SentencePiece, which has no special tokens within
// a text). Throws Error(model) for an unknown type.
TokenizerData sentencepiece_bpe(const std::vector<Piece>& pieces, bool add_dummy_prefix);

// Parses the protobuf of a tokenizer.model. `file_name` is for messages. Throws Error(model) when
// it is damaged, when the model is not BPE, and for normalizations that Llama's and Mistral's do
// not have.
TokenizerData parse_sentencepiece(std::string_view bytes, const std::string& file_name);

}  // namespace jackscrew
