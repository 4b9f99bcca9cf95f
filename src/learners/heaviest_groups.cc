#include "learners/heaviest_groups.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace jackscrew {

namespace {

// Groups that are taken together or not at all.
struct Bundle {
  std::span<const int32_t> groups;
  int64_t size, weight;
};

// Some of the bundles so far. `from` is twice its number among the choices without the last bundle,
// plus 1 if it takes that.
struct Choice {
  int64_t size, weight;
  int32_t from;
};

// Of choices sorted by size, those that are heavier than all before them. Where the next one's size
// lies within `step`, both become one that has the size of the first and the weight of the second.
std::vector<Choice> heavier(std::span<const Choice> sorted, int64_t step) {
  std::vector<Choice> out;
  for (const Choice& choice : sorted) {
    if (!out.empty() && choice.weight <= out.back().weight) continue;
    if (out.empty() || choice.size - out.back().size >= step) {
      out.push_back(choice);
    } else {
      out.back() = {out.back().size, choice.weight, choice.from};
    }
  }
  return out;
}

}  // namespace

std::vector<int32_t> heaviest_groups(std::span<const int64_t> sizes,
                                     std::span<const int64_t> weights, int64_t capacity) {
  // Groups of one size and weight, in bundles of 1, 2, 4 ..., of which some have any count.
  std::map<std::pair<int64_t, int64_t>, std::vector<int32_t>> kinds;
  for (size_t g = 0; g < sizes.size(); ++g) {
    if (weights[g] == 0) continue;  // of another stage: adds nothing
    kinds[{sizes[g], weights[g]}].push_back(static_cast<int32_t>(g));
  }
  std::vector<Bundle> bundles;
  for (const auto& [kind, groups] : kinds) {
    const std::span<const int32_t> all(groups);
    for (size_t begin = 0, most = 1; begin < all.size(); begin += most, most *= 2) {
      const size_t count = std::min(most, all.size() - begin);
      const auto times = static_cast<int64_t>(count);
      bundles.push_back({all.subspan(begin, count), times * kind.first, times * kind.second});
    }
  }
  // More than the sums of sizes in a hundred equal blocks. Each bundle keeps four bytes of each:
  // where there are many, fewer, so that all take no more than 16 MiB, which nobody books.
  constexpr int64_t kMostChoices = int64_t{1} << 16;
  constexpr int64_t kMostOrigins = int64_t{1} << 22;
  const int64_t most_choices = std::clamp(kMostOrigins / std::max<int64_t>(std::ssize(bundles), 1),
                                          int64_t{1}, kMostChoices);
  std::vector<Choice> choices = {{0, 0, 0}};
  std::vector<std::vector<int32_t>> origins;  // [bundles][choices]: `from`
  for (const Bundle& bundle : bundles) {
    std::vector<Choice> with, sorted;
    int32_t from = 0;
    for (Choice& choice : choices) {
      choice.from = from;
      const int64_t size = choice.size + bundle.size;
      if (size <= capacity) with.push_back({size, choice.weight + bundle.weight, from + 1});
      from += 2;
    }
    std::ranges::merge(choices, with, std::back_inserter(sorted), {}, &Choice::size, &Choice::size);
    choices = heavier(sorted, 1);
    if (std::ssize(choices) > most_choices) {
      choices = heavier(choices, capacity / most_choices + 1);
    }
    std::vector<int32_t>& origin = origins.emplace_back();
    for (const Choice& choice : choices) origin.push_back(choice.from);
  }
  std::vector<int32_t> out;
  size_t at = choices.size() - 1;
  for (size_t b = bundles.size(); b-- > 0;) {
    const auto from = static_cast<size_t>(origins[b][at]);
    if (from % 2 == 1) out.insert(out.end(), bundles[b].groups.begin(), bundles[b].groups.end());
    at = from / 2;
  }
  return out;
}

}  // namespace jackscrew
