// Matrices in the packed formats, of arbitrary codes: what their kernels are measured with.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "quant/packed_source.h"

namespace jackscrew {

struct PackedSample {
  const char* name;
  std::vector<std::pair<int64_t, int64_t>> mix;  // columns and bits; the last goes on to the end
  PackedScale scale;
  PackedZero zero;
  bool permuted;
};

// As GPTQ, AWQ, compressed-tensors and ExLlamaV2 (at about 4 and 3 bits) leave them.
inline const std::vector<PackedSample>& packed_samples() {
  static const std::vector<PackedSample> kSamples = {
      {"gptq_4", {{128, 4}}, PackedScale::f16, PackedZero::four_bits, false},
      {"gptq_4_order", {{128, 4}}, PackedScale::f16, PackedZero::four_bits, true},
      {"gptq_3", {{128, 3}}, PackedScale::f16, PackedZero::four_bits, false},
      {"packed_4", {{128, 4}}, PackedScale::bf16, PackedZero::middle, false},
      {"packed_8", {{128, 8}}, PackedScale::bf16, PackedZero::middle, false},
      {"exl2_4", {{32, 6}, {128, 5}, {128, 4}}, PackedScale::squared, PackedZero::middle, true},
      {"exl2_3",
       {{32, 4}, {64, 3}, {64, 3}, {64, 2}},
       PackedScale::squared,
       PackedZero::middle,
       true}};
  return kSamples;
}

inline StoredTensor packed_sample(const PackedSample& sample, int64_t rows, int64_t cols) {
  std::vector<std::pair<int64_t, int64_t>> groups;
  for (int64_t done = 0; done < cols; done += groups.back().first) {
    auto group = sample.mix[std::min(groups.size(), sample.mix.size() - 1)];
    group.first = std::min(group.first, cols - done);
    groups.push_back(group);
  }
  PackedSource source{.name = sample.name,
                      .format = sample.name,
                      .rows = rows,
                      .layout = packed_layout(groups, sample.scale, sample.zero, sample.permuted)};
  if (sample.permuted) {
    // An activation order puts neighbours anywhere.
    source.columns.resize(static_cast<size_t>(cols));
    std::iota(source.columns.begin(), source.columns.end(), 0);
    std::shuffle(source.columns.begin(), source.columns.end(), std::mt19937(1));
  }
  source.codes = [](int64_t begin, int64_t end, int64_t first, int64_t count, uint8_t* codes) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < count; ++i) {
        codes[(row - begin) * 32 + i] = static_cast<uint8_t>((row * 31 + first + i * 7) % 4);
      }
    }
  };
  const size_t count = groups.size();
  const bool squared = sample.scale == PackedScale::squared;
  source.scales = [=, scale = sample.scale](int64_t, uint8_t* to) {
    for (size_t g = 0; g < count; ++g) {
      const uint16_t bits = scale == PackedScale::bf16 ? 0x3C00 : 0x2000;  // 2^-7
      if (squared) to[g] = 9;
      if (!squared) std::memcpy(to + 2 * g, &bits, sizeof bits);
    }
  };
  source.zeros = [=](int64_t, uint8_t* to) { std::fill_n(to, count, uint8_t{8}); };
  if (squared) source.scale_max.assign(count, 0x0400);  // f16's smallest normal number
  return packed_tensor(std::move(source));
}

}  // namespace jackscrew
