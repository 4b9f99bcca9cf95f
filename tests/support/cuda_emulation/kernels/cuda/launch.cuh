// Stands in front of src/kernels/cuda/launch.cuh: kernels for GPUs compiled as plain C++. The
// threads of a block are fibers, run one after another and each up to its next barrier; what is not
// the same for all of them at a barrier, or is read without one, shows as it would on a GPU, or
// more plainly.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "base/half.h"
#include "cuda_runtime_api.h"
#include "tests/support/cuda_emulation/machine.h"
#include "tests/support/cuda_emulation/streams.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ __attribute__((always_inline)) inline
// A block runs after the other, and so they may share their memory. It holds NaN, or what another
// block left, as on a GPU.
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__

namespace jackscrew::cuda_emulation {

// The dimensions of what runs now.
struct Indices {
  dim3 block, grid, thread;
};
const Indices& indices();

void sync_threads();
void sync_warp();
// Ends when all threads of the warp have come; every one gets what thread `lane` of it brought.
uint64_t exchange(uint64_t mine, int from_lane);

// Products of the warp; see cuda::mma_s8 and cuda::mma_bf16.
void mma_s8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
// See cuda::load_matrices and cuda::load_matrices_transposed.
void load_matrices(uint32_t (&words)[4], const uint16_t* row, bool transposed);

// See cuda::copy_16_bytes and what follows it. Until somebody waits the copy holds NaN: who reads
// it before, or what it replaced, finds that.
void begin_copy(void* to, const void* from, size_t bytes, bool there);
void commit_copies();
void wait_for_copies(size_t left);

float* dynamic_floats();

// Runs body() for every thread of every block.
void run(dim3 blocks, dim3 threads, size_t dynamic_bytes, const std::function<void()>& body);

}  // namespace jackscrew::cuda_emulation

#define threadIdx (::jackscrew::cuda_emulation::indices().thread)
#define blockIdx (::jackscrew::cuda_emulation::indices().block)
#define gridDim (::jackscrew::cuda_emulation::indices().grid)

inline void __syncthreads() {
  jackscrew::cuda_emulation::sync_threads();
}

inline void __syncwarp() {
  jackscrew::cuda_emulation::sync_warp();
}

// From a thread of the `width` of the warp that one is among: the lowest bits of `from` say which.
template <class T>
T __shfl_sync(uint32_t, T value, int from, int width) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint64_t there =
      jackscrew::cuda_emulation::exchange(bits, lane / width * width + (from & (width - 1)));
  std::memcpy(&value, &there, sizeof value);
  return value;
}

template <class T>
T __shfl_xor_sync(uint32_t, T value, int mask) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint64_t from = jackscrew::cuda_emulation::exchange(bits, lane ^ mask);
  std::memcpy(&value, &from, sizeof value);
  return value;
}

// Byte i of the result is the one of the eight of low and high that digit i of `selector` names.
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = low | uint64_t{high} << 32;
  uint32_t out = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const auto byte = static_cast<uint8_t>(bytes >> 8 * (selector >> 4 * i & 7));
    out |= static_cast<uint32_t>(byte) << 8 * i;
  }
  return out;
}

namespace jackscrew::cuda {

inline constexpr int kWarp = 32;

struct Launch {
  dim3 blocks, threads;
  size_t dynamic_bytes;
  cudaStream_t stream;
};

// Of a kernel's arguments one after another, each where its type may lie.
template <class... Args>
constexpr size_t argument_bytes() {
  size_t bytes = 0;
  ((bytes = (bytes + alignof(Args) - 1) / alignof(Args) * alignof(Args) + sizeof(Args)), ...);
  return bytes;
}

template <class... Args>
cudaError_t launch(void (*kernel)(Args...), const Launch& how,
                   const std::type_identity_t<Args>&... args) {
  const cudaError_t refused = cuda_emulation::check_launch(
      how.blocks, how.threads, how.dynamic_bytes, argument_bytes<Args...>());
  if (refused != cudaSuccess) return refused;
  cuda_emulation::enqueue(how.stream, [=] {
    cuda_emulation::run(how.blocks, how.threads, how.dynamic_bytes, [&] { kernel(args...); });
  });
  return cudaSuccess;
}

inline float* dynamic_floats() {
  return cuda_emulation::dynamic_floats();
}
inline uint16_t* dynamic_halves() {
  return reinterpret_cast<uint16_t*>(dynamic_floats());
}

template <int kWords>
void store_words(const uint32_t (&words)[kWords], void* to) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  if (reinterpret_cast<uintptr_t>(to) % sizeof words != 0) {
    throw std::logic_error("a store of " + std::to_string(sizeof words) + " bytes is misaligned");
  }
  std::memcpy(to, words, sizeof words);
}

inline float exp2_approximate(float x) {
  return std::exp2(x);
}

inline uint32_t pack_bf16(float low, float high) {
  return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}

inline void mma_s8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  cuda_emulation::mma_s8(c, a, b);
}
inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  cuda_emulation::mma_bf16(c, a, b0, b1);
}
inline void load_matrices(uint32_t (&words)[4], const uint16_t* row) {
  cuda_emulation::load_matrices(words, row, false);
}
inline void load_matrices_transposed(uint32_t (&words)[4], const uint16_t* row) {
  cuda_emulation::load_matrices(words, row, true);
}

inline void copy_16_bytes(void* to, const void* from, bool there) {
  cuda_emulation::begin_copy(to, from, 16, there);
}
inline void copy_4_bytes(void* to, const void* from, bool there) {
  cuda_emulation::begin_copy(to, from, 4, there);
}
inline void commit_copies() {
  cuda_emulation::commit_copies();
}
template <int kLeft>
void wait_for_copies() {
  cuda_emulation::wait_for_copies(kLeft);
}

}  // namespace jackscrew::cuda
