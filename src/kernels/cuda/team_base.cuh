// The threads of a team, for row_cuda.cuh, and their random numbers.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "kernels/cuda/launch.cuh"

namespace jackscrew::cuda {

// Rows of the small Llamas this must serve are a few hundred to a few thousand elements long: 256
// threads give each of them work, and every architecture runs several such blocks at once.
inline constexpr int kThreads = 256;

// kSize threads, a block or one of its warps.
template <int kSize>
struct TeamBase {
  static_assert(kSize == kThreads || kSize == kWarp);

  __device__ static uint32_t thread() { return threadIdx.x % kSize; }
  __device__ static void barrier() {
    if constexpr (kSize == kWarp) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  // 64 random numbers: number i is x[i / 16] of Philox block 16 * index + i % 16. A thread computes
  // once the block of its own elements in the loops of `each`.
  struct RandomBits64 {
    RandomStream stream;
    uint64_t index;
    Philox4 mine;
    __device__ uint32_t operator[](int64_t i) const {
      const auto place = static_cast<uint32_t>(i % 16);
      const Philox4 four = place == thread() % 16 ? mine : stream.four(16 * index + place);
      return chosen(four, static_cast<uint32_t>(i) / 16);
    }
  };
  __device__ RandomBits64 sixty_four(const RandomStream& stream, uint64_t index) const {
    return {stream, index, stream.four(16 * index + thread() % 16)};
  }

  // Calls f(i, random number i), numbered as in sixty_four() from `index` on. Every Philox block is
  // computed by one thread, for itself and three others.
  template <class F>
  __device__ void each_random(const RandomStream& stream, uint64_t index, int64_t n, F f) const {
    if constexpr (kSize == kWarp) {
      for (int64_t first = 0; first < n; first += 4 * kWarp) {
        const uint32_t lane = thread();
        const Philox4 four =
            stream.four(16 * (index + static_cast<uint64_t>(first / 64) + lane / 16) + lane % 16);
#pragma unroll
        for (uint32_t part = 0; part < 4; ++part) {
          // Halves of the warp want neighbouring numbers of one block.
          const auto owner = static_cast<int>(part / 2 * 16 + lane % 16);
          const uint32_t low = __shfl_sync(0xFFFFFFFFu, four.x[part % 2 * 2], owner, kWarp);
          const uint32_t high = __shfl_sync(0xFFFFFFFFu, four.x[part % 2 * 2 + 1], owner, kWarp);
          const int64_t i = first + part * kWarp + lane;
          if (i < n) f(i, lane < 16 ? low : high);
        }
      }
    } else {
      __shared__ uint32_t numbers[kThreads];
      for (int64_t first = 0; first < n; first += kThreads) {
        if (threadIdx.x < kThreads / 4) {
          const uint32_t part = threadIdx.x / 16, place = threadIdx.x % 16;
          const Philox4 four =
              stream.four(16 * (index + static_cast<uint64_t>(first / 64) + part) + place);
#pragma unroll
          for (uint32_t k = 0; k < 4; ++k) numbers[64 * part + 16 * k + place] = four.x[k];
        }
        barrier();
        const int64_t i = first + thread();
        if (i < n) f(i, numbers[threadIdx.x]);
        barrier();
      }
    }
    barrier();
  }

 private:
  // Returns four.x[index] by selection: indexing would move the numbers from registers to memory.
  __device__ static uint32_t chosen(const Philox4& four, uint32_t index) {
    const uint32_t low = index % 2 == 0 ? four.x[0] : four.x[1];
    const uint32_t high = index % 2 == 0 ? four.x[2] : four.x[3];
    return index < 2 ? low : high;
  }
};

}  // namespace jackscrew::cuda
