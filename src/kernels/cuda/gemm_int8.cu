// Int8 products. A block of threads computes a tile of c, a group of the depth at a time: tensor
// cores form the group's sums, exact integers, which are scaled and added in f32 as on the CPU
// (cpu/int8.isa.cc), so that both give the same bits.
#include "kernels/cuda/gemm_int8.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/int8_group.h"

namespace jackscrew::cuda {

namespace {

constexpr int kRows = 64, kColumns = 64;          // of the tile
constexpr int kWarpRows = 16, kWarpColumns = 32;  // of each of eight warps
constexpr int kThreads = kRows / kWarpRows * (kColumns / kWarpColumns) * kWarp;
constexpr int kProducts = kWarpColumns / 8;  // products of tensor cores side by side in a warp
constexpr int kDepth = static_cast<int>(kInt8Group);
constexpr int kWords = kDepth / 4;
// Words from row to row in shared memory: the eight rows that a warp reads at once, four words of
// each, fall into different banks.
constexpr int kPitch = kWords + 4;

struct Tiles {
  uint32_t a[kRows * kPitch];     // rows of the depth
  uint32_t b[kColumns * kPitch];  // columns of the depth
};

__device__ int8_t byte_at(const int8_t* from, int64_t stride, int64_t row, int64_t rows,
                          int64_t column, int64_t columns) {
  return row < rows && column < columns ? from[row * stride + column] : int8_t{0};
}

// Four bytes along a row; zeros outside of the matrix.
__device__ uint32_t word_at(const int8_t* from, int64_t stride, int64_t row, int64_t rows,
                            int64_t column, int64_t columns) {
  const int8_t* at = from + row * stride + column;
  const bool whole = row < rows && column + 4 <= columns;
  if (whole && reinterpret_cast<uintptr_t>(at) % 4 == 0) {
    return *reinterpret_cast<const uint32_t*>(at);
  }
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const int8_t byte = byte_at(from, stride, row, rows, column + i, columns);
    word |= static_cast<uint32_t>(static_cast<uint8_t>(byte)) << (8 * i);
  }
  return word;
}

__device__ void load(const GemmInt8& args, int64_t row, int64_t column, int64_t depth,
                     Tiles& tiles) {
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kWords; i += kThreads) {
    tiles.a[i / kWords * kPitch + i % kWords] =
        word_at(args.a, args.a_stride, row + i / kWords, args.m, depth + i % kWords * 4, args.k);
  }
  if (args.transpose_b) {
    for (int i = static_cast<int>(threadIdx.x); i < kColumns * kWords; i += kThreads) {
      tiles.b[i / kWords * kPitch + i % kWords] = word_at(
          args.b, args.b_stride, column + i / kWords, args.n, depth + i % kWords * 4, args.k);
    }
    return;
  }
  auto* bytes = reinterpret_cast<int8_t*>(tiles.b);
  for (int i = static_cast<int>(threadIdx.x); i < kDepth * kColumns; i += kThreads) {
    bytes[i % kColumns * kPitch * 4 + i / kColumns] =
        byte_at(args.b, args.b_stride, depth + i / kColumns, args.k, column + i % kColumns, args.n);
  }
}

// The sums of one group for a warp's part of the tile.
__device__ void multiply(const Tiles& tiles, int warp_row, int warp_column,
                         int32_t (&sums)[kProducts][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = lane / 4;  // of the fragments: the row of a and c, the column of b
  const int word = lane % 4;
  for (int step = 0; step < kWords; step += 8) {  // 32 bytes of the depth
    const uint32_t* a = tiles.a + (warp_row + group) * kPitch + step + word;
    const uint32_t a_fragment[4] = {a[0], a[8 * kPitch], a[4], a[8 * kPitch + 4]};
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
      const uint32_t* b = tiles.b + (warp_column + product * 8 + group) * kPitch + step + word;
      const uint32_t b_fragment[2] = {b[0], b[4]};
      mma_s8(sums[product], a_fragment, b_fragment);
    }
  }
}

__global__ void __launch_bounds__(kThreads) multiply_groups(const GemmInt8 args) {
  __shared__ Tiles tiles;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kRows;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_row = warp % (kRows / kWarpRows) * kWarpRows;
  const int warp_column = warp / (kRows / kWarpRows) * kWarpColumns;
  // Where element i of a fragment of c lies.
  const auto c_row = [&](int i) { return row + warp_row + lane / 4 + i / 2 * 8; };
  const auto c_column = [&](int product, int i) {
    return column + warp_column + product * 8 + lane % 4 * 2 + i % 2;
  };
  float scaled[kProducts][4] = {};  // sums of the groups since the last kInt8Depth
  float total[kProducts][4] = {};
#pragma unroll
  for (int product = 0; product < kProducts; ++product) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_there = c_row(i) < args.m && c_column(product, i) < args.n;
      if (args.accumulate && is_there) {
        total[product][i] = args.c[c_row(i) * args.c_stride + c_column(product, i)];
      }
    }
  }
  for (int64_t depth = 0; depth < args.k; depth += kDepth) {
    __syncthreads();
    load(args, row, column, depth, tiles);
    __syncthreads();
    int32_t sums[kProducts][4] = {};
    multiply(tiles, warp_row, warp_column, sums);
    const bool ends = (depth + kDepth) % kInt8Depth == 0 || depth + kDepth >= args.k;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = c_row(i) < args.m
                              ? args.a_scales[c_row(i) * args.a_scales_stride + depth / kDepth]
                              : 0.0f;
#pragma unroll
      for (int product = 0; product < kProducts; ++product) {
        scaled[product][i] = fmaf(scale, static_cast<float>(sums[product][i]), scaled[product][i]);
        if (!ends) continue;
        const int64_t at = c_column(product, i);
        const float b_scale =
            args.b_scales != nullptr ? (at < args.n ? args.b_scales[at] : 0.0f) : 1.0f;
        total[product][i] = fmaf(b_scale, scaled[product][i], total[product][i]);
        scaled[product][i] = 0.0f;
      }
    }
  }
#pragma unroll
  for (int product = 0; product < kProducts; ++product) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_there = c_row(i) < args.m && c_column(product, i) < args.n;
      if (is_there) {
        args.c[c_row(i) * args.c_stride + c_column(product, i)] = total[product][i];
      }
    }
  }
}

}  // namespace

int gemm_int8(const GemmInt8& args, void* stream) {
  if (args.m == 0 || args.n == 0) return cudaSuccess;
  const dim3 blocks(static_cast<unsigned>((args.n + kColumns - 1) / kColumns),
                    static_cast<unsigned>((args.m + kRows - 1) / kRows), 1);
  return launch(multiply_groups, {blocks, {kThreads, 1, 1}, 0, static_cast<cudaStream_t>(stream)},
                args);
}

}  // namespace jackscrew::cuda
