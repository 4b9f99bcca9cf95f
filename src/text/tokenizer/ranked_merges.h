// Merges of vocabularies that rank their tokens instead of listing pairs (SentencePiece, tiktoken).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace jackscrew {

// Every way to put one of the `tokens` together from two others, cut between characters: those of
// the first token first, of one token the shortest left part first. This is the order in which
// transformers writes such a vocabulary as tokenizer.json. Throws Error(model) for a token that is
// far longer than any real one, since the work grows with the square of the length.
std::vector<std::pair<std::string, std::string>> ranked_merges(
    std::span<const std::string_view> tokens);

}  // namespace jackscrew
