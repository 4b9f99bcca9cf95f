// Int8 products. A block of threads computes a tile of c, a group of the depth at a time: tensor
// cores form the group's sums, exact integers, which are scaled and added in f32 as on the CPU
// (cpu/int8.isa.cc), so that both give the same bits. Groups are copied into shared memory while
// those before them are multiplied. What bounds the rate is f32: on an H100 tensor cores alone come
// to 1240 TOPS by these instructions, and to 640 where every group's sums are scaled.
#include "kernels/cuda/gemm_int8.h"

#include "base/half.h"
#include "kernels/cuda/adjacent.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/int8_group.h"

namespace jackscrew::cuda {

namespace {

// Rows and columns of c that a warp has: with fewer, shared memory is read too often; more do not
// fit into registers.
constexpr int kWarpTile = 64;
// Rows and columns of a block. Two such blocks run side by side on a multiprocessor, and one goes
// on while the other waits or writes c: a block of twice as many warps is slower by a tenth.
constexpr int kTile = 128;
constexpr int kWarps = kTile / kWarpTile * (kTile / kWarpTile);
constexpr int kThreads = kWarps * kWarp;
constexpr int kGroup = static_cast<int>(kInt8Group);
constexpr int kGroupsOfDepth = static_cast<int>(kInt8Depth) / kGroup;
// Groups in shared memory: one is multiplied while three arrive. With four, two blocks fit on a
// multiprocessor of sm_80 (164 KiB) and sm_90.
constexpr int kStages = 4;
constexpr int kPiece = 16;                                   // bytes that are copied at once
constexpr int kPieces = kTile * kGroup / kPiece / kThreads;  // of an operand's group, of a thread
constexpr int kScales = 4;  // of a row, one for each group: they are a piece

constexpr int kTall = kWarpTile / 16;  // products of tensor cores in a warp's tile, downwards
constexpr int kWide = kWarpTile / 8;   // and side by side

// The block's part of c. It waits in shared memory, because registers are full of sums.
struct Target {
  float* c;               // [rows, columns]
  const float* b_scales;  // [columns]; null: all 1
  int64_t stride;
  int rows, columns;
  bool accumulate;
};

struct Shared {
  int8_t a[kStages][kTile * kGroup];  // [kTile, kGroup], see Rows
  int8_t b[kStages][kTile * kGroup];  // see RowsOfB and ColumnsOfB
  float scales[2][kTile * kScales];   // [kTile, kScales] of a; while one is read the next arrive
  Target target;
};
static_assert(sizeof(Shared) <= size_t{99} << 10);  // what sm_86, sm_89 and sm_120 give a block

// Sums start from the bits of 1.5 * 2^23 as a float. They themselves stay below 2^22 and are added
// to its mantissa, so that a subtraction makes them floats, exactly; sm_80 converts integers at a
// quarter of that rate.
constexpr int32_t kZeroSum = 0x4B400000;
__device__ float float_of(int32_t sum) {
  return bits_float(static_cast<uint32_t>(sum)) - bits_float(kZeroSum);
}

using Scaled = float[kTall][kWide][4];  // a thread's numbers of its warp's tile

__device__ int thread() {
  return static_cast<int>(threadIdx.x);
}
__device__ int lane() {
  return thread() % kWarp;
}

// What a thread copies of an operand's next group: kPieces pieces, one below the other.
struct Pieces {
  const int8_t* from;  // the first one
  int rows;            // from there to the end of the matrix, downwards
  int left;            // and bytes to the right

  // Copies pieces kRowStep rows apart, and zeros for bytes that are not there. Below the matrix the
  // last piece above is repeated: it adds to what lies outside of c, or is multiplied by zeros of
  // a.
  template <int kRowStep, bool kAligned>
  __device__ void copy(int64_t stride, int8_t* to) const {
    constexpr int kApart = kThreads * kPiece;  // bytes from piece to piece
    if (kAligned && rows > (kPieces - 1) * kRowStep && left >= kPiece) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        copy_16_bytes(to + i * kApart, from + i * kRowStep * stride, true);
      }
      return;
    }
    const int there = left < kPiece ? left : kPiece;
    const int bytes = rows > 0 && left > 0 ? there : 0;
    const int8_t* piece = from;
#pragma unroll 1
    for (int i = 0; i < kPieces; ++i) {
      if (i > 0 && i * kRowStep < rows) piece += kRowStep * stride;
      int8_t* place = to + i * kApart;
      if (kAligned && bytes % kPiece == 0) {
        copy_16_bytes(place, piece, bytes > 0);
      } else {
        for (int j = 0; j < kPiece; ++j) place[j] = j < bytes ? piece[j] : int8_t{0};
      }
    }
  }
};

// A tile of rows along the depth, [kTile, kGroup]. Which of its row's four places a piece has
// depends on the row: the eight rows that load_matrices reads at once then lie in different banks.
struct Rows {
  static constexpr int kStep = kThreads / 4;  // rows from piece to piece of a thread
  __device__ static int place(int row, int piece) {
    return row * kGroup + (piece ^ row / 2 % 4) * kPiece;
  }
  __device__ static int first_place() { return place(thread() / 4, thread() % 4); }
  // Of `rows` rows of `left` bytes. The thread's first piece comes from row `first`.
  __device__ static Pieces pieces(const int8_t* from, int64_t stride, int first, int rows,
                                  int left) {
    const int piece = thread() % 4 * kPiece;
    return {from + first * stride + piece, rows - first, left - piece};
  }
  __device__ static void advance(Pieces& pieces, int64_t) {
    pieces.from += kGroup;
    pieces.left -= kGroup;
  }
};

// b [n, k]. Products 2 i and 2 i + 1 of a warp have the even and the odd ones of 16 columns of c,
// so that a thread has four neighbours: in the tile, eight even rows of b precede eight odd ones.
struct RowsOfB : Rows {
  __device__ static Pieces pieces(const int8_t* from, int64_t stride, int columns, int depth) {
    const int place = thread() / 4;
    return Rows::pieces(from, stride, place / 16 * 16 + place % 8 * 2 + place / 8 % 2, columns,
                        depth);
  }
  // Reads the fragments of a group, a row of them for each product side by side: words 2 i and
  // 2 i + 1 for step i of the depth.
  __device__ static void read(const int8_t* tile, int warp_column, uint32_t (&b)[kWide][4]) {
    const int8_t* row = tile + place(warp_column + lane() % 8, lane() / 8);
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      load_matrices(b[n], reinterpret_cast<const uint16_t*>(row + n * 8 * kGroup));
    }
  }
};

// b [k, n], as a tile [kGroup, kTile] from which the same fragments are made.
struct ColumnsOfB {
  static constexpr int kRowPieces = kTile / kPiece;
  static constexpr int kStep = kThreads / kRowPieces;
  // Different for the eight rows that are read at once, which are 4 i and 4 i + 1, or the two next.
  __device__ static int place(int row, int piece) {
    return row * kTile + (piece ^ (row % 2 + row / 4 % 4 * 2)) * kPiece;
  }
  __device__ static int first_place() {
    return place(thread() / kRowPieces, thread() % kRowPieces);
  }
  __device__ static Pieces pieces(const int8_t* from, int64_t stride, int columns, int depth) {
    const int first = thread() / kRowPieces;
    const int piece = thread() % kRowPieces * kPiece;
    return {from + first * stride + piece, depth - first, columns - piece};
  }
  __device__ static void advance(Pieces& pieces, int64_t stride) {
    pieces.from += kGroup * stride;
    pieces.rows -= kGroup;
  }
  // Elements of 16 bits, which load_matrices_transposed moves, are two columns of a row. Rows 4 i
  // and 4 i + 1 are read as one matrix, 4 i + 2 and 4 i + 3 as the next: then a thread has two
  // columns of four rows, which are sorted into two words.
  __device__ static void read(const int8_t* tile, int warp_column, uint32_t (&b)[kWide][4]) {
    const int row = lane() / 16 * 16 + lane() % 8 / 2 * 4 + lane() / 8 % 2 * 2 + lane() % 2;
#pragma unroll
    for (int n = 0; n < kWide; n += 2) {
      const int8_t* at = tile + place(row, warp_column / kPiece + n / 2);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint32_t words[4];
        load_matrices_transposed(words, reinterpret_cast<const uint16_t*>(at + step * 32 * kTile));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t low = words[half * 2], high = words[half * 2 + 1];
          b[n][step * 2 + half] = __byte_perm(low, high, 0x6420);
          b[n + 1][step * 2 + half] = __byte_perm(low, high, 0x7531);
        }
      }
    }
  }
};

// How the copies of a group are cut: a's, b's and the scales.
constexpr int kCopyParts = 3;

// scaled += the scaled sums of a group. `scales` are those of the tile's first row. Between rows of
// products, copy(part) begins copies of a later group: their branches keep the compiler from
// loading more fragments at once than there are registers.
template <class B, class Copy>
__device__ void multiply(const int8_t* a_tile, const int8_t* b_tile, const float* scales,
                         int warp_row, int warp_column, Scaled& scaled, const Copy& copy) {
  uint32_t b[kWide][4];
  B::read(b_tile, warp_column, b);
  uint32_t a[2][2][4];  // of this row of products and of the next
  const auto read_a = [&](int m) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int place = Rows::place(warp_row + lane() % 16, step * 2 + lane() / 16);
      load_matrices(a[m % 2][step],
                    reinterpret_cast<const uint16_t*>(a_tile + place + m * 16 * kGroup));
    }
  };
  read_a(0);
  scales += (warp_row + lane() / 4) * kScales;
#pragma unroll
  for (int m = 0; m < kTall; ++m) {
    static_assert(kCopyParts == kTall - 1);
    if (m > 0) copy(m - 1);
    const float scale[2] = {scales[m * 16 * kScales], scales[(m * 16 + 8) * kScales]};
    if (m + 1 < kTall) read_a(m + 1);
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      int32_t sums[4] = {kZeroSum, kZeroSum, kZeroSum, kZeroSum};
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const uint32_t b_fragment[2] = {b[n][step * 2], b[n][step * 2 + 1]};
        mma_s8(sums, a[m % 2][step], b_fragment);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scaled[m][n][i] = fmaf(scale[i / 2], float_of(sums[i]), scaled[m][n][i]);
      }
    }
  }
}

// c (+)= scaled times the columns' scales, in the tile of the warp.
__device__ void add_to_c(const Target& target, int warp_row, int warp_column, bool accumulate,
                         const Scaled& scaled) {
  const bool whole = target.rows == kTile && target.columns == kTile &&
                     reinterpret_cast<uintptr_t>(target.c) % 16 == 0 && target.stride % 4 == 0;
  // Of the thread's first element, and from there to the end of the tile.
  const int row = warp_row + lane() / 4, column = warp_column + lane() % 4 * 4;
  const int rows = target.rows - row, columns = target.columns - column;
  float* const c = target.c + row * target.stride + column;
  const float* const b_scales = target.b_scales == nullptr ? nullptr : target.b_scales + column;
#pragma unroll
  for (int n = 0; n < kWide * 8; n += 16) {
    float scales[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    if (b_scales != nullptr) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (n + j < columns) scales[j] = b_scales[n + j];
      }
    }
#pragma unroll
    for (int m = 0; m < kTall * 16; m += 8) {
      const float(&even)[4] = scaled[m / 16][n / 8];
      const float(&odd)[4] = scaled[m / 16][n / 8 + 1];
      const int i = m % 16 / 8 * 2;  // a fragment's numbers 2 and 3 lie eight rows below 0 and 1
      const float sums[4] = {even[i], odd[i], even[i + 1], odd[i + 1]};
      float* to = c + m * target.stride + n;
      if (whole) {
        auto* four = reinterpret_cast<Adjacent<float, 4>*>(to);
        Adjacent<float, 4> out = accumulate ? *four : Adjacent<float, 4>{};
#pragma unroll
        for (int j = 0; j < 4; ++j) out.elements[j] = fmaf(scales[j], sums[j], out.elements[j]);
        *four = out;
      } else if (m < rows) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (n + j >= columns) continue;
          to[j] = fmaf(scales[j], sums[j], accumulate ? to[j] : 0.0f);
        }
      }
    }
  }
}

template <class B, bool kAligned>
__global__ void __launch_bounds__(kThreads) multiply_groups(const GemmInt8 args) {
  auto& shared = *reinterpret_cast<Shared*>(dynamic_floats());
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kTile;
  const int warp = thread() / kWarp;
  const int warp_row = warp % (kTile / kWarpTile) * kWarpTile;
  const int warp_column = warp / (kTile / kWarpTile) * kWarpTile;
  const int rows = static_cast<int>(args.m - row < kTile ? args.m - row : kTile);
  const int columns = static_cast<int>(args.n - column < kTile ? args.n - column : kTile);
  const auto depth = static_cast<int>(args.k);
  const int groups = (depth + kGroup - 1) / kGroup;

  Pieces a = Rows::pieces(args.a + row * args.a_stride, args.a_stride, thread() / 4, rows, depth);
  Pieces b = B::pieces(args.b + column * (args.transpose_b ? args.b_stride : 1), args.b_stride,
                       columns, depth);
  static_assert(kThreads == kTile);  // a thread copies the scales of a row
  const float* scales =
      args.a_scales + (row + (thread() < rows ? thread() : rows - 1)) * args.a_scales_stride;
  const bool scales_aligned =
      reinterpret_cast<uintptr_t>(args.a_scales) % 16 == 0 && args.a_scales_stride % kScales == 0;
  static_assert(kStages - 1 <= kScales);  // or a group's scales would replace those that are read
  const auto copy = [&](int group, int part) {
    if (group < groups && part == 0) {
      a.copy<Rows::kStep, kAligned>(args.a_stride, shared.a[group % kStages] + Rows::first_place());
      Rows::advance(a, args.a_stride);
    } else if (group < groups && part == 1) {
      b.copy<B::kStep, kAligned>(args.b_stride, shared.b[group % kStages] + B::first_place());
      B::advance(b, args.b_stride);
    } else if (group < groups && group % kScales == 0) {
      const int count = groups - group < kScales ? groups - group : kScales;
      float* to = shared.scales[group / kScales % 2] + thread() * kScales;
      if (scales_aligned && count == kScales) {
        copy_16_bytes(to, scales, true);
      } else {
        for (int i = 0; i < count; ++i) to[i] = scales[i];
      }
      scales += kScales;
    }
    if (part + 1 == kCopyParts) commit_copies();
  };
  for (int group = 0; group < kStages - 1; ++group) {
    for (int part = 0; part < kCopyParts; ++part) copy(group, part);
  }
  if (thread() == 0) {
    shared.target = {args.c + row * args.c_stride + column,
                     args.b_scales == nullptr ? nullptr : args.b_scales + column,
                     args.c_stride,
                     rows,
                     columns,
                     args.accumulate};
  }
  for (int begin = 0; begin < groups; begin += kGroupsOfDepth) {
    const int end = groups - begin < kGroupsOfDepth ? groups : begin + kGroupsOfDepth;
    Scaled scaled = {};
    for (int group = begin; group < end; ++group) {
      wait_for_copies<kStages - 2>();
      __syncthreads();
      multiply<B>(shared.a[group % kStages], shared.b[group % kStages],
                  shared.scales[group / kScales % 2] + group % kScales, warp_row, warp_column,
                  scaled, [&](int part) { copy(group + kStages - 1, part); });
    }
    const Target target = shared.target;
    add_to_c(target, warp_row, warp_column, target.accumulate || begin > 0, scaled);
  }
}

}  // namespace

int gemm_int8(const GemmInt8& args, void* stream) {
  if (args.m == 0 || args.n == 0) return cudaSuccess;
  const auto is_aligned = [](const int8_t* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % kPiece == 0 && stride % kPiece == 0;
  };
  const bool aligned = is_aligned(args.a, args.a_stride) && is_aligned(args.b, args.b_stride);
  const auto kernel =
      args.transpose_b
          ? (aligned ? multiply_groups<RowsOfB, true> : multiply_groups<RowsOfB, false>)
          : (aligned ? multiply_groups<ColumnsOfB, true> : multiply_groups<ColumnsOfB, false>);
  const dim3 blocks(static_cast<unsigned>((args.n + kTile - 1) / kTile),
                    static_cast<unsigned>((args.m + kTile - 1) / kTile), 1);
  return launch(
      kernel, {blocks, {kThreads, 1, 1}, sizeof(Shared), static_cast<cudaStream_t>(stream)}, args);
}

}  // namespace jackscrew::cuda
