// Pieces of rows that a thread loads and stores at once, for row_cuda.cuh.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/half.h"
#include "kernels/cuda/adjacent.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/row_operands.h"

namespace jackscrew::cuda {

// Stores kCount floats as elements of another type, at a multiple of their bytes.
template <int kCount>
__device__ void store_piece(const float (&values)[kCount], float* to) {
  uint32_t words[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) words[i] = float_bits(values[i]);
  store_words(words, to);
}
template <int kCount>
__device__ void store_piece(const float (&values)[kCount], bf16* to) {
  if constexpr (kCount == 1) {
    *to = bf16{static_cast<uint16_t>(pack_bf16(values[0], 0.0f))};
  } else {  // the hardware rounds two at a time
    uint32_t words[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) words[i] = pack_bf16(values[2 * i], values[2 * i + 1]);
    store_words(words, to);
  }
}
template <int kCount>
__device__ void store_piece(const float (&values)[kCount], f16* to) {
  for (int i = 0; i < kCount; ++i) to[i] = to_f16(values[i]);
}

// kCount elements of an operand of Team::elementwise, in registers.
template <class Operand, int kCount>
struct Held {
  using Loaded = Adjacent<std::remove_const_t<typename Operand::Element>, kCount>;
  Operand operand;
  int64_t first;
  float values[kCount];

  __device__ Held(const Operand& of, int64_t i) : operand(of), first(i) {
    if constexpr (Operand::kReads) {
      const Loaded loaded = *reinterpret_cast<const Loaded*>(of.at + i);
#pragma unroll
      for (int k = 0; k < kCount; ++k) values[k] = to_float(loaded.elements[k]);
    }
  }
  __device__ void put() const {
    if constexpr (Operand::kWrites) store_piece(values, operand.at + first);
  }
};

}  // namespace jackscrew::cuda
