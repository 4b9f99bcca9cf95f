// Merges for vocabularies that rank their tokens instead of listing pairs (SentencePiece,
// tiktoken).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace jackscrew {

// Every way to make one of the `tokens` from two others, cut between characters: ordered by token,
// then by length of the left part, shortest first. This is the order in which transformers writes
// such a vocabulary to tokenizer.json. Throws Error(model) for a token far longer than any real
// one, since the work grows with the square of its length.
std::vector<std::pair<std::string, std::string>> ranked_merges(
    std::span<const std::string_view> tokens);

}  // namespace jackscrew
