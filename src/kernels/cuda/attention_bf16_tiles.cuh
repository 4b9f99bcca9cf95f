// What a warp does with tiles of bf16 in attention_bf16.cu: loads them into shared memory,
// multiplies them on tensor cores, hides scores, stores results.
#pragma once

#include "base/half.h"
#include "kernels/cuda/adjacent.cuh"
#include "kernels/cuda/attention_tiles.cuh"

namespace jackscrew::cuda {

inline constexpr int kAttentionWarps = 4;
inline constexpr int kAttentionThreads = kAttentionWarps * kWarp;
inline constexpr int kFragmentRows = 16;  // the height of a tensor core's product

// A thread's share of a warp's result: for every 16 rows a fragment for every 8 columns. Element i
// of a fragment is in row row_of(i) of its 16 and column column_of(i) of its 8.
template <int kRows, int kColumns>
using Fragments = float[kRows / kFragmentRows][kColumns / 8][4];

__device__ inline int lane() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ inline int warp() {
  return static_cast<int>(threadIdx.x) / kWarp;
}
__device__ inline int row_of(int i) {
  return lane() / 4 + i / 2 * 8;
}
__device__ inline int column_of(int i) {
  return lane() % 4 * 2 + i % 2;
}

// Reductions over the four threads that share a row.
__device__ inline float row_total(float value) {
  value += __shfl_xor_sync(0xFFFFFFFFu, value, 1);
  return value + __shfl_xor_sync(0xFFFFFFFFu, value, 2);
}
__device__ inline float row_largest(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 2));
}

// Where eight elements lie in a tile of rows of kColumns: rows follow each other without a gap, and
// within a row the pieces of 16 bytes change places, so that the same piece of eight rows falls
// into different banks. kColumns: a multiple of 64.
template <int kColumns>
__device__ int piece_at(int row, int piece) {
  return row * kColumns + (piece ^ (row & 7)) * 8;
}
// piece_at(row, piece + by) of `at` = piece_at(row, piece), for numbers that share no binary digit.
__device__ inline int piece_after(int at, int by) {
  return (at ^ (by % 8 * 8)) + by / 8 * 64;
}

// Two elements as one word of bf16, `low` in the low half.
__device__ inline uint32_t pack(float low, float high) {
  return pack_bf16(low, high);
}
__device__ inline uint32_t pack(bf16 low, bf16 high) {
  return low.bits | static_cast<uint32_t>(high.bits) << 16;
}

// The part of a head's rows that one thread loads: a piece of every kRowsAtOnce-th row.
template <int kHeadDim, class Element>
struct Source {
  static constexpr int kElements = kWidestBytes / sizeof(Element);
  using Piece = Adjacent<Element, kElements>;
  static constexpr int kPieces = kHeadDim / kElements;
  static constexpr int kRowsAtOnce = kAttentionThreads / kPieces;

  const Element* from;  // its first piece, of the sequence's first rows
  int64_t stride;
  int rows;  // there are, from that of `from` on; none of a piece beyond the head
  int dim;
  int at;        // of the first piece in a tile
  bool aligned;  // all pieces are whole, at multiples of 16 bytes

  // first: [all_rows, head_dim], the head in the sequence's first row.
  __device__ Source(const Element* first, int64_t row_stride, int all_rows, int64_t head_dim)
      : stride(row_stride), dim(static_cast<int>(head_dim)) {
    const int row = static_cast<int>(threadIdx.x) / kPieces;
    const int column = static_cast<int>(threadIdx.x) % kPieces * kElements;
    from = first + row * row_stride + column;
    rows = column < dim ? all_rows - row : 0;
    at = piece_at<kHeadDim>(row, column / 8) + column % 8;
    const auto address = reinterpret_cast<uintptr_t>(first) |
                         static_cast<uintptr_t>(stride) * sizeof(Element) |
                         static_cast<uintptr_t>(dim) * sizeof(Element);
    aligned = address % sizeof(Piece) == 0;
  }

  // Begins to load rows [begin, begin + kCount) into a tile, as bf16; zeros beyond the head. They
  // are there after commit_copies(), wait_for_copies() and a barrier.
  template <int kCount>
  __device__ void load(int begin, uint16_t* tile) const {
    static_assert(kCount % kRowsAtOnce == 0);
    const Element* piece = from + begin * stride;
    const int64_t step = kRowsAtOnce * stride;
    const int left = rows - begin;
    // Of row + kRowsAtOnce * n, as piece_at() has it: their numbers share no binary digit.
    const auto to = [&](int row) { return tile + (at ^ row % 8 * 8) + row * kHeadDim; };
    if constexpr (sizeof(Element) == sizeof(uint16_t)) {
      if (aligned) {
#pragma unroll
        for (int row = 0; row < kCount; row += kRowsAtOnce, piece += step) {
          copy_16_bytes(to(row), piece, row < left);
        }
        return;
      }
    }
    const int beyond = dim - static_cast<int>(threadIdx.x) % kPieces * kElements;
    const int columns = beyond < kElements ? beyond : kElements;  // of the piece
#pragma unroll 1                                                  // the registers are the sums'
    for (int row = 0; row < kCount; row += kRowsAtOnce, piece += step) {
      put_rounded(piece, row < left ? columns : 0, to(row));
    }
  }

  __device__ void put_rounded(const Element* piece, int there, uint16_t* to) const {
    Piece values{};
    if (aligned && there == kElements) {
      values = *reinterpret_cast<const Piece*>(piece);
    } else {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (e < there) values.elements[e] = piece[e];
      }
    }
    using Words = Adjacent<uint32_t, kElements / 2>;
    Words packed;
#pragma unroll
    for (int w = 0; w < kElements / 2; ++w) {
      packed.elements[w] = pack(values.elements[2 * w], values.elements[2 * w + 1]);
    }
    *reinterpret_cast<Words*>(to) = packed;
  }
};

// Begins to load a float per thread and zeros beyond `left`, likewise.
template <int kCount>
__device__ void load_floats(const float* from, int left, float* to) {
  static_assert(kCount <= kAttentionThreads);
  const int i = static_cast<int>(threadIdx.x);
  if (i < kCount) copy_4_bytes(to + i, from + i, i < left);
}

// Left operands of products: fragment `depth` / 16 of rows m * 16 to m * 16 + 15 of the warp's.

// Rows of a tile with rows of kColumns, from `first_column` on.
template <int kColumns>
struct RowsOf {
  const uint16_t* tile;
  int at;

  __device__ RowsOf(const uint16_t* of, int first_row, int first_column = 0)
      : tile(of), at(piece_at<kColumns>(first_row + lane() % 16, first_column / 8 + lane() / 16)) {}
  __device__ void get(int m, int depth, uint32_t (&a)[4]) const {
    load_matrices(a, tile + piece_after(at, depth / 8) + m * kFragmentRows * kColumns);
  }
};

// A result, once rounded: its fragments are those of a left operand.
template <int kRows, int kColumns>
struct Rounded {
  const Fragments<kRows, kColumns>& values;

  __device__ void get(int m, int depth, uint32_t (&a)[4]) const {
    const float(&low)[4] = values[m][depth / 8];
    const float(&high)[4] = values[m][depth / 8 + 1];
    a[0] = pack_bf16(low[0], low[1]);
    a[1] = pack_bf16(low[2], low[3]);
    a[2] = pack_bf16(high[0], high[1]);
    a[3] = pack_bf16(high[2], high[3]);
  }
};

// sums = left times the transposed rows [first_row, first_row + kColumns) of `right`.
template <int kHeadDim, int kRows, int kColumns, class Left>
__device__ void multiply_rows(const Left& left, const uint16_t* right, int first_row,
                              Fragments<kRows, kColumns>& sums) {
  const int at = piece_at<kHeadDim>(first_row + lane() / 16 * 8 + lane() % 8, lane() / 8 % 2);
#pragma unroll
  for (int m = 0; m < kRows / kFragmentRows; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      for (int i = 0; i < 4; ++i) sums[m][n][i] = 0.0f;
    }
  }
#pragma unroll
  for (int depth = 0; depth < kHeadDim; depth += 16) {
    uint32_t a[kRows / kFragmentRows][4];
#pragma unroll
    for (int m = 0; m < kRows / kFragmentRows; ++m) left.get(m, depth, a[m]);
    const uint16_t* from = right + piece_after(at, depth / 8);
#pragma unroll
    for (int n = 0; n < kColumns; n += 16) {
      uint32_t b[4];
      load_matrices(b, from + n * kHeadDim);
#pragma unroll
      for (int m = 0; m < kRows / kFragmentRows; ++m) {
        mma_bf16(sums[m][n / 8], a[m], b[0], b[1]);
        mma_bf16(sums[m][n / 8 + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// sums += left [kRows, kDepth] times columns [first_column, first_column + kColumns) of `right`.
template <int kHeadDim, int kDepth, int kRows, int kColumns, class Left>
__device__ void add_columns(const Left& left, const uint16_t* right, int first_column,
                            Fragments<kRows, kColumns>& sums) {
  const int at = piece_at<kHeadDim>(lane() % 16, first_column / 8 + lane() / 16);
#pragma unroll
  for (int depth = 0; depth < kDepth; depth += 16) {
    uint32_t a[kRows / kFragmentRows][4];
#pragma unroll
    for (int m = 0; m < kRows / kFragmentRows; ++m) left.get(m, depth, a[m]);
#pragma unroll
    for (int n = 0; n < kColumns; n += 16) {
      uint32_t b[4];
      load_matrices_transposed(b, right + piece_after(at, n / 8) + depth * kHeadDim);
#pragma unroll
      for (int m = 0; m < kRows / kFragmentRows; ++m) {
        mma_bf16(sums[m][n / 8], a[m], b[0], b[1]);
        mma_bf16(sums[m][n / 8 + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Puts a result, rounded, into a tile with rows of kPitch.
template <int kPitch, int kRows, int kColumns>
__device__ void put(const Fragments<kRows, kColumns>& values, uint16_t* tile, int first_row,
                    int first_column) {
#pragma unroll
  for (int m = 0; m < kRows / kFragmentRows; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int row = first_row + m * kFragmentRows + row_of(i);
        uint16_t* to = tile + piece_at<kPitch>(row, first_column / 8 + n) + column_of(i);
        *reinterpret_cast<uint32_t*>(to) = pack_bf16(values[m][n][i], values[m][n][i + 1]);
      }
    }
  }
}

// Which of a warp's queries and keys see each other: query r sees key c where 0 <= distance + r - c
// < window. Rows beyond the sequence are 0, and what comes of them is not stored.
struct Sight {
  int distance;  // of the first query to the first key
  int window;

  __device__ bool sees(int query, int key) const {
    return static_cast<unsigned>(distance + query - key) < static_cast<unsigned>(window);
  }
  __device__ bool all_see(int queries, int keys) const {
    return distance - (keys - 1) >= 0 && distance + queries - 1 < window;
  }
  __device__ bool none_see(int queries, int keys) const {
    return distance + queries - 1 < 0 || distance - (keys - 1) >= window;
  }
};

// Hides the scores of what does not see each other: their weights become 0.
template <bool kQueriesInRows, int kRows, int kColumns>
__device__ void hide_unseen(const Sight& sight, Fragments<kRows, kColumns>& scores) {
  constexpr float kUnseen = -__builtin_huge_valf();
#pragma unroll
  for (int m = 0; m < kRows / kFragmentRows; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = m * kFragmentRows + row_of(i);
        const int column = n * 8 + column_of(i);
        const bool sees = kQueriesInRows ? sight.sees(row, column) : sight.sees(column, row);
        if (!sees) scores[m][n][i] = kUnseen;
      }
    }
  }
}

// Two elements of a result.
__device__ inline void store_pair(float* to, float low, float high) {
  *reinterpret_cast<Adjacent<float, 2>*>(to) = {{low, high}};
}
__device__ inline void store_pair(bf16* to, float low, float high) {
  *reinterpret_cast<uint32_t*>(to) = pack_bf16(low, high);
}

// Stores the warp's rows and columns that are there. `to`: the first of them.
template <int kRows, int kColumns, class Element>
__device__ void store(const Fragments<kRows, kColumns>& sums, Element* to, int64_t stride, int rows,
                      int columns) {
  const auto address =
      reinterpret_cast<uintptr_t>(to) | static_cast<uintptr_t>(stride) * sizeof(Element);
  const bool in_pairs = address % (2 * sizeof(Element)) == 0;
#pragma unroll
  for (int m = 0; m < kRows / kFragmentRows; ++m) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int row = m * kFragmentRows + row_of(i);
      if (row >= rows) continue;
      Element* start = to + row * stride + column_of(i);
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const int left = columns - n * 8 - column_of(i);
        if (in_pairs && left >= 2) {
          store_pair(start + n * 8, sums[m][n][i], sums[m][n][i + 1]);
          continue;
        }
        if (left >= 1) start[n * 8] = from_float<Element>(sums[m][n][i]);
        if (left >= 2) start[n * 8 + 1] = from_float<Element>(sums[m][n][i + 1]);
      }
    }
  }
}

}  // namespace jackscrew::cuda
