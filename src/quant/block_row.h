// The row kernels of block formats: they decode rows, and multiply a single token by them. A format
// brings a Block: sizes and
//   template <class Team, class Store>
//   static void decode(const Team&, const uint8_t* block, const Store& store)   // store(i, float)
//
// Values are the bits that ggml computes. A compiler may fuse a product with the sum it goes into,
// which skips the rounding of the product. No bit depends on that while products are exact in the
// 24 bits of f32, and here they are: an f16 scale has 11 bits, a sub-scale and a quantum have at
// most 13 together (Q6_K; a sub-scale of -32 in IQ4_XS has one bit). A format with longer products
// must round them by itself.
#pragma once

#include "kernels/row_dot.h"
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

// A format may bring code of its own for products of rows, used where Team::kHasDot:
//   template <class Dot> static auto numbers()  // what codes stand for: Dot::Whole or Dot::Table
//   static constexpr DotLayout kDotLayout
//   static constexpr DotScales kDotScales
//   template <int kBlocks, class Dot, class Numbers>
//   static void dot(Dot&, const Numbers&, const uint8_t* blocks, const Dot::Input& x)
// adds the products of so many blocks with x [kBlocks * kElements].
template <class Block>
concept HasDot = requires {
  Block::kDotLayout;
};

// What Blocks say that unpack their codes to bytes, or whose nibbles are the numbers.
template <DotScales kScales>
struct BytesDot {
  static constexpr DotLayout kDotLayout = DotLayout::bytes;
  static constexpr DotScales kDotScales = kScales;
  template <class Dot>
  JACKSCREW_ROW static auto numbers() {
    return typename Dot::Bytes{};
  }
};
template <DotLayout kLayout, DotScales kScales>
struct NibblesDot {
  static constexpr DotLayout kDotLayout = kLayout;
  static constexpr DotScales kDotScales = kScales;
  template <class Dot>
  JACKSCREW_ROW static auto numbers() {
    return typename Dot::Whole{};
  }
};

// What Blocks say whose nibbles stand for whole numbers: Values::values(), of magnitudes up to
// Values::kLargest.
using SixteenValues = float[16];
template <class Values>
struct TableDot {
  static constexpr DotLayout kDotLayout = DotLayout::halves;
  static constexpr DotScales kDotScales = DotScales::groups;
  template <class Dot>
  JACKSCREW_ROW static auto numbers() {
    return typename Dot::template Table<Values::kLargest>(Values::values());
  }
};

// Decodes 32 of them, from element `to` on: byte i holds i (low nibble) and i + 16.
template <class Team, class Store>
JACKSCREW_ROW void decode_halves(const Team& team, const SixteenValues& values, float scale,
                                 const uint8_t* bytes, int64_t to, const Store& store) {
  const auto codes = team.sixteen(bytes);
  const auto low = team.lookup(values, codes, 0);
  const auto high = team.lookup(values, codes, 4);
  team.each(16, [&](int64_t i) {
    store(to + i, scale * low[i]);
    store(to + i + 16, scale * high[i]);
  });
}

// Calls f<lanes>(first block) for the vectors of codes that so many blocks of 32 elements fill.
template <int kBlocks, class Dot, class F>
JACKSCREW_ROW void each_vector(const F& f) {
  constexpr int kFull = kBlocks / Dot::kLanes;
  constexpr int kRest = kBlocks % Dot::kLanes;
  Dot::template each<kFull>([&](int v) { f.template operator()<Dot::kLanes>(Dot::kLanes * v); });
  if constexpr (kRest > 0) f.template operator()<kRest>(Dot::kLanes * kFull);
}

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

  // Rows [begin, end), which share the rounded x.
  template <class Team>
  requires(Team::kHasDot&& HasDot<Block>) JACKSCREW_ROW
      void rows(const Team&, int64_t begin, int64_t end) const {
    using Dot = typename Team::Dot;
    constexpr int64_t kStep = Dot::kColumns / Block::kElements;
    typename Dot::template Buffer<Block::kDotScales> in;
    const auto numbers = Block::template numbers<Dot>();
    for (int64_t first = 0; first < blocks; first += kStep) {
      const int64_t count = blocks - first < kStep ? blocks - first : kStep;
      in.template prepare<decltype(numbers), Block::kDotLayout>(x + first * Block::kElements,
                                                                count * Block::kElements);
      for (int64_t row = begin; row < end; ++row) {
        const uint8_t* from = storage + row * row_bytes + first * Block::kBytes;
        const float part = row_part<Dot>(numbers, from, in.input(), count);
        y[row] = accumulate || first > 0 ? y[row] + part : part;
      }
    }
  }

 private:
  template <class Dot, class Numbers>
  JACKSCREW_ROW static float row_part(const Numbers& numbers, const uint8_t* from,
                                      const typename Dot::Input& in, int64_t count) {
    constexpr int64_t kTogether = Block::kElements <= 32 ? 4 : 1;  // f16 that are widened at once
    Dot dot;
    int64_t b = 0;
    const auto add = [&]<int kBlocks>() {
      Block::template dot<kBlocks>(dot, numbers, from + b * Block::kBytes,
                                   in.from(b * Block::kElements / Dot::kGroup, Block::kDotScales));
    };
    for (; b + kTogether <= count; b += kTogether) add.template operator()<kTogether>();
    if constexpr (kTogether == 4) {
      if (count - b == 1) add.template operator()<1>();
      if (count - b == 2) add.template operator()<2>();
      if (count - b == 3) add.template operator()<3>();
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
