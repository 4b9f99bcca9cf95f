// The row kernels of EXL3; the layout is in exl3.h.
//
// A block of 128 rows and 128 columns is 8 x 8 tiles of 16 x 16 numbers. A tile is 8 lanes of
// `bits` words; lane c has the 32 numbers of rows c and c + 8. Number m is at the same bits in
// every lane, so that 8 tiles side by side along the columns, 64 lanes, are decoded at once. Until
// it is written, column 16 t + r of a block is at place 8 r + t.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/row_math.h"
#include "quant/scale_rounding.h"

namespace jackscrew {

inline constexpr int64_t kExl3Block = 128;  // rows, or columns, of a Hadamard transform
inline constexpr int64_t kExl3Lanes = 64;   // of 8 tiles side by side: 8 c + t is lane c of tile t
inline constexpr int64_t kExl3NumbersPerLane = 32;

// How a state of 16 bits becomes an f16 number (exllamav3: decode_3inst).
struct Exl3Plain {
  static constexpr uint32_t kFactor = 89226354u, kTerm = 64248484u;
};
struct Exl3Mcg {
  static constexpr uint32_t kFactor = 0xCBAC1FEDu, kTerm = 0;
};
struct Exl3Mul1 {
  static constexpr uint32_t kFactor = 0x83DCD12Du, kTerm = 0;
};

// Widens an f16 with a magnitude from 1 / 8 to 2.
JACKSCREW_ROW float exl3_half(uint32_t half) {
  return bits_float((half & 0x8000u) << 16 | (((half & 0x7FFFu) << 13) + (112u << 23)));
}

template <class Book>
JACKSCREW_ROW float exl3_number(Book, uint32_t state) {
  const uint32_t mixed = ((state * Book::kFactor + Book::kTerm) & 0x8FFF8FFFu) ^ 0x3B603B60u;
  return round_to_f16(exl3_half(mixed & 0xFFFFu) + exl3_half(mixed >> 16));
}
// Integers and constants have at most 11 bits: product and sum are exact before they are rounded.
JACKSCREW_ROW float exl3_number(Exl3Mul1, uint32_t state) {
  const uint32_t mixed = state * Exl3Mul1::kFactor;
  const uint32_t sum = (mixed & 255u) + (mixed >> 8 & 255u) + (mixed >> 16 & 255u) + (mixed >> 24);
  return round_to_f16(static_cast<float>(static_cast<int32_t>(sum + 1024u)) * (887.0f * 0x1p-17f) -
                      10.3828125f);
}

// The position of number m of lane c in its tile: its column, and whether its row is c + 8.
JACKSCREW_ROW int64_t exl3_column(int64_t m) {
  return (m & 1) | (m >> 3 & 1) << 1 | (m >> 4 & 1) << 2 | (m >> 1 & 1) << 3;
}
JACKSCREW_ROW int64_t exl3_upper(int64_t m) {
  return m >> 2 & 1;
}

struct Exl3Matrix {
  const uint32_t* words;     // [cols / 16, rows / 16, 8 * bits]
  const f16* input_scales;   // [cols]
  const f16* output_scales;  // [rows]
  int64_t rows, cols;        // multiples of 128
  int64_t bits;

  // Loads the words of tiles [tile_column, tile_column + 8) along the columns into words_of_lanes
  // [bits + 1, 64]. Row 0 is the word before a lane's first: a tile's words are a ring.
  template <class Team>
  JACKSCREW_ROW void load(const Team& team, int64_t tile_row, int64_t tile_column,
                          float* words_of_lanes) const {
    const int64_t next = rows / 16 * 8 * bits;
    const uint32_t* from = words + tile_column * next + tile_row * 8 * bits;
    team.each((bits + 1) * 8, 8, [&](int64_t i, int64_t t) {
      const int64_t word = i % 8 * bits + i / 8 - 1;
      words_of_lanes[i * 8 + t] = bits_float(from[t * next + (word < 0 ? 8 * bits - 1 : word)]);
    });
  }

  // The state of number m: the 16 bits that end with its own, the first of them highest.
  JACKSCREW_ROW uint32_t state(const float* words_of_lanes, int64_t m, int64_t lane) const {
    const int64_t end = (m + 1) * bits;
    const int64_t word = (end - 1) / 32;
    const auto shift = static_cast<uint32_t>(32 * (word + 1) - end);
    const uint32_t high = float_bits(words_of_lanes[word * kExl3Lanes + lane]);
    const uint32_t low = float_bits(words_of_lanes[(word + 1) * kExl3Lanes + lane]);
    return (low >> shift | high << 1 << (31u - shift)) & 0xFFFFu;
  }
};

// Two steps of a Hadamard transform on four numbers: sums and differences of pairs h apart, then 2
// h apart.
struct Exl3Four {
  float values[4];
};
JACKSCREW_ROW Exl3Four exl3_four(float a, float b, float c, float d) {
  const float ab = a + b;
  const float a_b = a - b;
  const float cd = c + d;
  const float c_d = c - d;
  return {{ab + cd, a_b + c_d, ab - cd, a_b - c_d}};
}

JACKSCREW_ROW void hadamard_step4(float* at, int64_t step) {
  const Exl3Four four = exl3_four(at[0], at[step], at[2 * step], at[3 * step]);
  at[0] = four.values[0];
  at[step] = four.values[1];
  at[2 * step] = four.values[2];
  at[3 * step] = four.values[3];
}

// Decodes rows of W block by block. Row b of the kernel is block b % (cols / 128) along the
// columns; b / (cols / 128) counts blocks of rows from that of first_row, or, with a row list, its
// entries.
template <class Book>
struct DecodeExl3 {
  // Not a power of two, where the elements of a column would fall on few cache lines.
  static constexpr int64_t kPitch = kExl3Block + 16;
  static constexpr int64_t kTile = kExl3Block * kPitch;
  static constexpr int64_t kWords = 9 * kExl3Lanes;
  static constexpr int64_t kSharedFloats = kTile + kWords + 2 * kExl3Block;

  Exl3Matrix matrix;
  const int32_t* indices;  // row list; null: rows first_row, first_row + 1, ...
  void* out;               // [rows, out_stride] f32, or bf16
  int64_t first_row;
  int64_t rows;        // written
  int64_t out_stride;  // elements
  bool out_bf16;

  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t b) const {
    typename Team::template Shared<kSharedFloats> shared;
    float* tile = shared.data();  // [128, kPitch]: row of W, place of the column
    const int64_t across = matrix.cols / kExl3Block;
    const int64_t column = b % across * kExl3Block;
    const int64_t group = b / across;
    const int64_t begin = indices != nullptr ? indices[group] : first_row;
    const int64_t end = indices != nullptr ? begin + 1 : first_row + rows;
    const int64_t block = begin / kExl3Block + (indices != nullptr ? 0 : group);
    const int64_t top = block * kExl3Block;
    float* scales = tile + kTile + kWords;  // [128]: of the columns
    float* columns = scales + kExl3Block;   // [128]: of one row
    team.each(kExl3Block,
              [&](int64_t i) { scales[i] = to_float(matrix.input_scales[column + i]); });
    decode(team, block, column, tile);
    hadamard_rows(team, tile);
    const int64_t first = begin > top ? begin : top;
    const int64_t last = end < top + kExl3Block ? end : top + kExl3Block;
    for (int64_t row = first; row < last; ++row) {
      float* permuted_columns = tile + (row - top) * kPitch;
      team.each(4, 8,
                [&](int64_t i, int64_t t) { hadamard_step4(permuted_columns + i * 32 + t, 8); });
      team.each(32, [&](int64_t place) { hadamard_step4(permuted_columns + place, 32); });
      const int64_t at = (indices != nullptr ? group : row - begin) * out_stride + column;
      if (out_bf16) {
        write(team, permuted_columns, scales, row, columns, static_cast<bf16*>(out) + at);
      } else {
        write(team, permuted_columns, scales, row, columns, static_cast<float*>(out) + at);
      }
    }
  }

 private:
  template <class Team>
  JACKSCREW_ROW void decode(const Team& team, int64_t block, int64_t column, float* tile) const {
    float* words = tile + kTile;
    for (int64_t i = 0; i < 8; ++i) {
      matrix.load(team, block * 8 + i, column / 16, words);
      team.each(kExl3NumbersPerLane * 8, 8, [&](int64_t number, int64_t t) {
        const int64_t m = number / 8;
        const int64_t c = number % 8;
        tile[(16 * i + 8 * exl3_upper(m) + c) * kPitch + 8 * exl3_column(m) + t] =
            exl3_number(Book{}, matrix.state(words, m, 8 * c + t));
      });
    }
  }

  // The Hadamard transform along the rows of W, in strips that stay in the nearest cache.
  template <class Team>
  JACKSCREW_ROW void hadamard_rows(const Team& team, float* tile) const {
    constexpr int64_t kStrip = 32;
    for (int64_t strip = 0; strip < kExl3Block; strip += kStrip) {
      for (int64_t step = 1; step < 64; step *= 4) {
        team.each(32, kStrip, [&](int64_t i, int64_t place) {
          hadamard_step4(tile + (i / step * 4 * step + i % step) * kPitch + strip + place,
                         step * kPitch);
        });
      }
      team.each(64, kStrip, [&](int64_t i, int64_t place) {
        float* at = tile + i * kPitch + strip + place;
        const float low = at[0];
        const float high = at[64 * kPitch];
        at[0] = low + high;
        at[64 * kPitch] = low - high;
      });
    }
  }

  // Applies the last steps along the columns of a row, from tile to tile, and its scales, and
  // writes it.
  template <class Team, class To>
  JACKSCREW_ROW void write(const Team& team, const float* permuted_columns, const float* scales,
                           int64_t row, float* columns, To* to) const {
    const float scale = to_float(matrix.output_scales[row]) * 0x1p-7f;
    team.transpose_eight(permuted_columns, 16, columns);
    team.each(16, [=](int64_t r) {
      const float* at = columns + r;
      const Exl3Four low = exl3_four(at[0], at[16], at[32], at[48]);
      const Exl3Four high = exl3_four(at[64], at[80], at[96], at[112]);
      for (int64_t t = 0; t < 4; ++t) {
        const int64_t near = 16 * t + r;
        const int64_t far = near + 64;
        to[near] = from_float<To>((low.values[t] + high.values[t]) * scales[near] * scale);
        to[far] = from_float<To>((low.values[t] - high.values[t]) * scales[far] * scale);
      }
    });
  }
};

// The Hadamard transform of 128 values in place.
template <class Team>
JACKSCREW_ROW void exl3_transform(const Team& team, float* values) {
  for (int64_t step = 1; step < kExl3Block; step *= 2) {
    team.each(kExl3Block / 2, [&](int64_t i) {
      const int64_t at = i / step * 2 * step + i % step;
      const float low = values[at];
      const float high = values[at + step];
      values[at] = low + high;
      values[at + step] = low - high;
    });
  }
}

// Scales and transforms x, so that it can be multiplied by the numbers of the tiles as they are. A
// row of the kernel is a block of 128 columns.
struct TransformExl3Input {
  static constexpr int64_t kSharedFloats = kExl3Block;
  const float* x;           // [cols]
  const f16* input_scales;  // [cols]
  float* transformed_x;     // [cols], with columns permuted as in a tile
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    typename Team::template Shared<kSharedFloats> shared;
    float* values = shared.data();
    const int64_t first = row * kExl3Block;
    team.each(kExl3Block,
              [&](int64_t i) { values[i] = x[first + i] * to_float(input_scales[first + i]); });
    exl3_transform(team, values);
    team.each(kExl3Block,
              [&](int64_t i) { transformed_x[first + i % 16 * 8 + i / 16] = values[i]; });
  }
};
JACKSCREW_ROW_KERNEL(TransformExl3Input)

// The product of a single token, y (+)= W x. A row of the kernel is a block of 128 rows of W.
template <class Book>
struct DotExl3 {
  static constexpr int64_t kWords = 9 * kExl3Lanes;
  static constexpr int64_t kSums = kExl3Block * 8;
  static constexpr int64_t kSharedFloats = kWords + kSums + kExl3Block;
  Exl3Matrix matrix;
  const float* transformed_x;  // [cols], with columns permuted as in a tile
  float* y;                    // [rows]
  int64_t rows;                // of y: those beyond are padding
  bool accumulate;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t block) const {
    typename Team::template Shared<kSharedFloats> shared;
    float* words = shared.data();
    float* sums = words + kWords;  // [128, 8]: of each row and tile along the columns
    float* values = sums + kSums;
    team.each(kSums, [&](int64_t i) { sums[i] = 0.0f; });
    for (int64_t column = 0; column < matrix.cols; column += kExl3Block) {
      for (int64_t i = 0; i < 8; ++i) {
        matrix.load(team, block * 8 + i, column / 16, words);
        for (int64_t m = 0; m < kExl3NumbersPerLane; ++m) {
          const float* x = transformed_x + column + 8 * exl3_column(m);
          float* to = sums + (16 * i + 8 * exl3_upper(m)) * 8;
          team.each(8, 8, [&](int64_t c, int64_t t) {
            to[8 * c + t] += x[t] * exl3_number(Book{}, matrix.state(words, m, 8 * c + t));
          });
        }
      }
    }
    team.each(kExl3Block, [&](int64_t row) {
      const float* of_row = sums + row * 8;
      float total = 0.0f;
      for (int64_t t = 0; t < 8; ++t) total += of_row[t];
      values[row] = total;
    });
    exl3_transform(team, values);
    const int64_t first = block * kExl3Block;
    team.each(rows - first < kExl3Block ? rows - first : kExl3Block, [&](int64_t i) {
      const float total = values[i] * (to_float(matrix.output_scales[first + i]) * 0x1p-7f);
      y[first + i] = accumulate ? y[first + i] + total : total;
    });
  }
};

using DecodeExl3Plain = DecodeExl3<Exl3Plain>;
using DecodeExl3Mcg = DecodeExl3<Exl3Mcg>;
using DecodeExl3Mul1 = DecodeExl3<Exl3Mul1>;
using DotExl3Plain = DotExl3<Exl3Plain>;
using DotExl3Mcg = DotExl3<Exl3Mcg>;
using DotExl3Mul1 = DotExl3<Exl3Mul1>;
JACKSCREW_ROW_KERNEL(DecodeExl3Plain)
JACKSCREW_ROW_KERNEL(DecodeExl3Mcg)
JACKSCREW_ROW_KERNEL(DecodeExl3Mul1)
JACKSCREW_ROW_KERNEL(DotExl3Plain)
JACKSCREW_ROW_KERNEL(DotExl3Mcg)
JACKSCREW_ROW_KERNEL(DotExl3Mul1)

}  // namespace jackscrew
