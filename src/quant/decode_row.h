// The row kernel that decodes any block format. A format brings a Block: sizes and
//   template <class Team, class Store>
//   static void decode(const Team&, const uint8_t* block, const Store& store)   // store(i, float)
//
// Values are the bits that ggml computes. A compiler may fuse a product with the sum it goes into,
// which skips the rounding of the product. No bit depends on that while products are exact in the
// 24 bits of f32, and here they are: an f16 scale has 11 bits, a sub-scale and a quantum have at
// most 13 together (Q6_K; a sub-scale of -32 in IQ4_XS has one bit). A format with longer products
// must round them by itself.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/row_math.h"

namespace jackscrew {

template <class Block>
struct DecodeBlocks {
  static constexpr bool kShortLoops = true;
  const uint8_t* storage;  // [?, row_bytes]
  const int32_t* indices;  // row list; null: rows first_row, first_row + 1, ...
  void* out;               // [rows, out_stride] f32, or bf16
  int64_t row_bytes;
  int64_t first_row;
  int64_t blocks;      // of each row
  int64_t out_stride;  // elements
  bool out_bf16;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t source = indices != nullptr ? indices[row] : first_row + row;
    const uint8_t* bytes = storage + source * row_bytes;
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* block = bytes + b * Block::kBytes;
      const int64_t at = row * out_stride + b * Block::kElements;
      if (out_bf16) {
        bf16* to = static_cast<bf16*>(out) + at;
        Block::decode(team, block, [=](int64_t i, float value) { to[i] = to_bf16(value); });
      } else {
        float* to = static_cast<float*>(out) + at;
        Block::decode(team, block, [=](int64_t i, float value) { to[i] = value; });
      }
    }
  }
};

// A format of four bits may bring code of its own for products of rows, used where Team::kHasDot:
//   template <int kBlocks, class Dot>
//   static void dot(Dot&, const uint8_t* blocks, const float* x, const float* sums)
// adds the products of so many blocks with x [kBlocks * kElements]; `sums`, those of each 32 of x,
// are kSumStride apart (Dot::sum_groups).
template <class Block>
concept HasDot = requires {
  Block::kSumStride;
};

// y[row] = sum of x times row `row` of a matrix: the product of a single token, where writing
// decoded rows out and reading them back would cost more than the arithmetic.
template <class Block>
struct DotBlocks {
  static constexpr bool kShortLoops = true;
  const float* x;          // [blocks * kElements]
  const uint8_t* storage;  // [rows, row_bytes]
  float* y;                // [rows]
  int64_t row_bytes, blocks;
  bool accumulate;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const uint8_t* bytes = storage + row * row_bytes;
    typename Team::template Sums<Block::kElements> lanes;
    for (int64_t b = 0; b < blocks; ++b) {
      const float* in = x + b * Block::kElements;
      Block::decode(team, bytes + b * Block::kBytes,
                    [&](int64_t i, float value) { lanes[i] += value * in[i]; });
    }
    const float total = team.total(lanes);
    team.once([&] { y[row] = accumulate ? y[row] + total : total; });
  }

  // Rows [begin, end), which share the sums of x.
  template <class Team>
  requires(Team::kHasDot&& HasDot<Block>) JACKSCREW_ROW
      void rows(const Team&, int64_t begin, int64_t end) const {
    using Dot = typename Team::Dot;
    constexpr int64_t kMost = 8192;  // columns at a time: their x and sums stay in a near cache
    constexpr int64_t kStep = kMost / Block::kElements;
    float sums[kMost / Dot::kGroup * Block::kSumStride + Dot::kBeyond];
    for (int64_t first = 0; first < blocks; first += kStep) {
      const int64_t count = blocks - first < kStep ? blocks - first : kStep;
      const float* in = x + first * Block::kElements;
      Dot::sum_groups(in, count * Block::kElements, Block::kSumStride, sums);
      for (int64_t row = begin; row < end; ++row) {
        const float part =
            row_part<Dot>(storage + row * row_bytes + first * Block::kBytes, in, sums, count);
        y[row] = accumulate || first > 0 ? y[row] + part : part;
      }
    }
  }

 private:
  template <class Dot>
  JACKSCREW_ROW static float row_part(const uint8_t* from, const float* in, const float* sums,
                                      int64_t count) {
    constexpr int64_t kTogether = Block::kElements <= 32 ? 4 : 1;  // f16 that are widened at once
    constexpr int64_t kSums = Block::kElements / Dot::kGroup * Block::kSumStride;
    Dot dot;
    int64_t b = 0;
    for (; b + kTogether <= count; b += kTogether) {
      Block::template dot<kTogether>(dot, from + b * Block::kBytes, in + b * Block::kElements,
                                     sums + b * kSums);
    }
    for (; b < count; ++b) {
      Block::template dot<1>(dot, from + b * Block::kBytes, in + b * Block::kElements,
                             sums + b * kSums);
    }
    return dot.total();
  }
};

// Little-endian f16 at any address.
template <class Team>
JACKSCREW_ROW float load_f16(const Team& team, const uint8_t* bytes) {
  return team.half({static_cast<uint16_t>(bytes[0] | (bytes[1] << 8))});
}

// Little-endian words at any address.
JACKSCREW_ROW uint32_t load_u16(const uint8_t* bytes) {
  return static_cast<uint32_t>(bytes[0]) | static_cast<uint32_t>(bytes[1]) << 8;
}
JACKSCREW_ROW uint32_t load_u32(const uint8_t* bytes) {
  return static_cast<uint32_t>(bytes[0]) | static_cast<uint32_t>(bytes[1]) << 8 |
         static_cast<uint32_t>(bytes[2]) << 16 | static_cast<uint32_t>(bytes[3]) << 24;
}

JACKSCREW_ROW uint64_t load_u64(const uint8_t* bytes) {
  return load_u32(bytes) | static_cast<uint64_t>(load_u32(bytes + 4)) << 32;
}

// The eight nibbles of a word, or the eight pairs of bits, each in a byte of its own, the lowest
// first.
JACKSCREW_ROW uint64_t spread_nibbles(uint32_t word) {
  uint64_t out = word;
  out = (out | out << 16) & 0x0000FFFF0000FFFFu;
  out = (out | out << 8) & 0x00FF00FF00FF00FFu;
  return (out | out << 4) & 0x0F0F0F0F0F0F0F0Fu;
}
JACKSCREW_ROW uint64_t spread_pairs(uint32_t word) {
  uint64_t out = word;
  out = (out | out << 24) & 0x000000FF000000FFu;
  out = (out | out << 12) & 0x000F000F000F000Fu;
  return (out | out << 6) & 0x0303030303030303u;
}

// Bit i of the word as the fifth bit of a quantum.
JACKSCREW_ROW int32_t fifth_bit(uint32_t bits, int64_t i) {
  return static_cast<int32_t>(bits >> static_cast<uint32_t>(i) << 4 & 16);
}

}  // namespace jackscrew
