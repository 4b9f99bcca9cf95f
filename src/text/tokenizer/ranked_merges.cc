#include "text/tokenizer/ranked_merges.h"

#include <unordered_set>

#include "base/error.h"
#include "text/utf8.h"

namespace jackscrew {

namespace {

constexpr size_t kMaxTokenBytes = 1024;  // the longest in use has about 300

}  // namespace

std::vector<std::pair<std::string, std::string>> ranked_merges(
    std::span<const std::string_view> tokens) {
  const std::unordered_set<std::string_view> known(tokens.begin(), tokens.end());
  std::vector<std::pair<std::string, std::string>> merges;
  for (const std::string_view token : tokens) {
    if (token.size() > kMaxTokenBytes) {
      fail(ErrorKind::model, "a token has {} bytes, more than {}", token.size(), kMaxTokenBytes);
    }
    for (size_t cut = 0; cut < token.size();) {
      cut += utf8_step(token, cut).length;
      if (cut == token.size()) break;
      const std::string_view left = token.substr(0, cut);
      const std::string_view right = token.substr(cut);
      if (known.contains(left) && known.contains(right)) merges.emplace_back(left, right);
    }
  }
  return merges;
}

}  // namespace jackscrew
