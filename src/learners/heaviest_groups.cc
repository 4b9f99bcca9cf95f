#include "learners/heaviest_groups.h"

#include <algorithm>
#include <map>
#include <utility>

namespace jackscrew {

namespace {

// Groups of one size and weight.
struct Kind {
  int64_t size, weight;
  std::vector<int32_t> groups;
};

// Tries every count of every kind; the last kind takes all that fits.
void search(const std::vector<Kind>& kinds, size_t at, int64_t capacity, int64_t weight,
            std::vector<int64_t>& counts, int64_t& best, std::vector<int64_t>& best_counts) {
  const Kind& kind = kinds[at];
  const int64_t most = std::min(static_cast<int64_t>(kind.groups.size()), capacity / kind.size);
  const bool last = at + 1 == kinds.size();
  for (int64_t count = last ? most : 0; count <= most; ++count) {
    counts[at] = count;
    const int64_t total = weight + count * kind.weight;
    if (!last) {
      search(kinds, at + 1, capacity - count * kind.size, total, counts, best, best_counts);
    } else if (total > best) {
      best = total;
      best_counts = counts;
    }
  }
}

}  // namespace

std::vector<int32_t> heaviest_groups(std::span<const int64_t> sizes,
                                     std::span<const int64_t> weights, int64_t capacity) {
  std::map<std::pair<int64_t, int64_t>, Kind> by_kind;
  for (size_t g = 0; g < sizes.size(); ++g) {
    if (weights[g] == 0) continue;  // of another stage: adds nothing, and doubles the search
    Kind& kind = by_kind[{sizes[g], weights[g]}];
    kind.size = sizes[g];
    kind.weight = weights[g];
    kind.groups.push_back(static_cast<int32_t>(g));
  }
  std::vector<Kind> kinds;
  kinds.reserve(by_kind.size());
  for (auto& [key, kind] : by_kind) kinds.push_back(std::move(kind));
  if (kinds.empty()) return {};
  std::vector<int64_t> counts(kinds.size(), 0);
  std::vector<int64_t> best_counts = counts;
  int64_t best = -1;
  search(kinds, 0, capacity, 0, counts, best, best_counts);
  std::vector<int32_t> out;
  for (size_t k = 0; k < kinds.size(); ++k) {
    for (int64_t i = 0; i < best_counts[k]; ++i) {
      out.push_back(kinds[k].groups[static_cast<size_t>(i)]);
    }
  }
  return out;
}

}  // namespace jackscrew
