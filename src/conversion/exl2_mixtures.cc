#include "conversion/exl2_mixtures.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "quant/packed.h"

namespace jackscrew {

namespace {

constexpr Exl2Mixture kMixtures[] = {
    {2, 2, 100, 128}, {2, 2, 100, 64},  {2, 2, 100, 32},  {4, 2, 5, 32},    {3, 2, 10, 128},
    {3, 2, 10, 32},   {3, 2, 25, 32},   {3, 2, 50, 64},   {3, 2, 50, 32},   {3, 3, 100, 128},
    {3, 3, 100, 64},  {3, 3, 100, 32},  {6, 3, 5, 32},    {4, 3, 10, 128},  {4, 3, 10, 32},
    {4, 3, 25, 32},   {4, 3, 50, 64},   {4, 3, 50, 32},   {4, 4, 100, 128}, {4, 4, 100, 64},
    {4, 4, 100, 32},  {8, 4, 5, 32},    {5, 4, 10, 128},  {5, 4, 10, 32},   {5, 4, 50, 128},
    {5, 4, 50, 32},   {5, 5, 100, 128}, {5, 5, 100, 32},  {8, 5, 5, 32},    {6, 5, 10, 128},
    {6, 5, 10, 32},   {6, 5, 50, 64},   {6, 6, 100, 128}, {6, 6, 100, 32},  {8, 6, 10, 128},
    {8, 6, 10, 32},   {8, 6, 50, 128},  {8, 8, 100, 128}, {8, 8, 100, 32},
};

// As ExLlamaV2 has the head, 15 of 100 columns with more bits.
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

int64_t exl2_held_bytes(const WeightSpec& weight, const Exl2Groups& groups) {
  return packed_parts(layout_of(groups), nullptr, weight.rows).bytes;
}

}  // namespace jackscrew
