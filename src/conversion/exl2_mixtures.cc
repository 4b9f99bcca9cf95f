#include "conversion/exl2_mixtures.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "quant/packed.h"

namespace jackscrew {

namespace {

constexpr int64_t kBits[] = {2, 3, 4, 5, 6, 8};
constexpr int64_t kGroupSizes[] = {128, 64, 32};
// Percentages of columns that may have the higher bits. Bit widths further apart than kFarthest are
// not mixed: no matrix gets such a mixture.
constexpr int64_t kHighPercents[] = {5, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90};
constexpr int64_t kFarthest = 4;

std::vector<Exl2Mixture> all_mixtures() {
  std::vector<Exl2Mixture> out;
  for (const int64_t group_size : kGroupSizes) {
    for (const int64_t low : kBits) {
      out.push_back({low, low, 100, group_size});
      for (const int64_t high : kBits) {
        if (high <= low || high - low > kFarthest) continue;
        for (const int64_t percent : kHighPercents) out.push_back({high, low, percent, group_size});
      }
    }
  }
  return out;
}

// What the head may have: as in ExLlamaV2, mostly 15 % of the columns with more bits.
constexpr Exl2Mixture kHeadMixtures[] = {
    {4, 2, 30, 32},  {4, 3, 15, 32},  {6, 4, 15, 32},
    {6, 5, 15, 128}, {8, 6, 15, 128}, {8, 8, 100, 128},
};

PackedLayout layout_of(const Exl2Groups& groups) {
  std::vector<std::pair<int64_t, int64_t>> sizes_and_bits;
  for (const auto& [columns, bits] : groups) sizes_and_bits.emplace_back(columns, bits);
  return packed_layout(sizes_and_bits, PackedScale::squared, PackedZero::middle, true);
}

}  // namespace

std::span<const Exl2Mixture> exl2_mixtures() {
  static const std::vector<Exl2Mixture> kMixtures = all_mixtures();
  return kMixtures;
}

Exl2Mixture exl2_head_mixture(int64_t bits) {
  const auto found = std::ranges::find(kHeadMixtures, bits, &Exl2Mixture::low);
  if (found != std::end(kHeadMixtures)) return *found;
  throw Error(ErrorKind::usage, fmt::format("EXL2 has no head of {} bits", bits),
              "head_bits=2, 3, 4, 5, 6 or 8, or 16: the head stays as it is");
}

Exl2Groups exl2_groups(const Exl2Mixture& mixture, int64_t cols) {
  const int64_t high =
      std::min(cols, round_up(ceil_div(cols * mixture.high_percent, 100), mixture.group_size));
  Exl2Groups groups;
  groups.reserve(static_cast<size_t>(ceil_div(cols, mixture.group_size)));
  for (int64_t first = 0; first < cols; first += groups.back().columns) {
    groups.push_back(
        {std::min(mixture.group_size, cols - first), first < high ? mixture.high : mixture.low});
  }
  return groups;
}

int64_t exl2_file_bytes(const WeightSpec& weight, const Exl2Groups& groups) {
  return bytes_of(exl2_specs(weight, groups));
}

FormatPointer exl2_format(const Exl2Groups& groups) {
  return make_packed_format("exl2", layout_of(groups));
}

int64_t exl2_memory_bytes(const WeightSpec& weight, const Exl2Groups& groups) {
  return packed_parts(layout_of(groups), nullptr, weight.rows).bytes;
}

}  // namespace jackscrew
