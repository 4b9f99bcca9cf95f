// Random numbers of a row kernel for the CPU instruction set JACKSCREW_ROW_TARGET: a part of
// row_cpu.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/philox.h"

namespace jackscrew::JACKSCREW_ROW_TARGET {

struct RandomTeam {
  // 64 random numbers, those of 16 Philox blocks: number i is x[i / 16] of block 16 * index + i %
  // 16. Vectorised by hand, because GCC knows no vector multiplication of 32 bits into 64 and takes
  // four times as long.
  struct RandomBits64 {
    uint32_t values[64];
    JACKSCREW_INLINE uint32_t operator[](int64_t i) const { return values[i]; }
  };
  JACKSCREW_INLINE RandomBits64 sixty_four(const RandomStream& stream, uint64_t index) const {
    constexpr int kParts = 16 / kPairs;  // side by side, to hide the latency of multiplications
    Wide c0[kParts], c1[kParts], c2[kParts], c3[kParts];
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      c0[p] = 16 * index + static_cast<uint64_t>(p * kPairs) + kLanes;
      c1[p] = c0[p] >> 32;
      c2[p] = stream.purpose_and_step - Wide{};
      c3[p] = stream.tensor - Wide{};
    }
    auto k0 = static_cast<uint32_t>(stream.seed);
    auto k1 = static_cast<uint32_t>(stream.seed >> 32);
    for (int round = 0; round < 10; ++round, k0 += kPhiloxW0, k1 += kPhiloxW1) {
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) {
        const Wide p0 = product(c0[p], kPhiloxM0);
        const Wide p1 = product(c2[p], kPhiloxM1);
        c0[p] = (p1 >> 32) ^ c1[p] ^ (k0 - Wide{});
        c2[p] = (p0 >> 32) ^ c3[p] ^ (k1 - Wide{});
        c1[p] = p1;
        c3[p] = p0;
      }
    }
    RandomBits64 out;
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      const Wide numbers[] = {c0[p], c1[p], c2[p], c3[p]};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const auto low = __builtin_convertvector(numbers[i], Narrow);
        __builtin_memcpy(out.values + 16 * i + p * kPairs, &low, sizeof low);
      }
    }
    return out;
  }

 protected:
  // 32-bit words in 64-bit lanes, whose upper halves are ignored.
#if defined(__AVX512F__)
  static constexpr int kPairs = 8;
  typedef uint64_t Wide __attribute__((vector_size(64)));
  static constexpr Wide kLanes = {0, 1, 2, 3, 4, 5, 6, 7};
  JACKSCREW_INLINE static Wide product(Wide a, uint32_t b) {
    return (Wide)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, _mm512_set1_epi64(b));
  }
#else
  static constexpr int kPairs = 4;
  typedef uint64_t Wide __attribute__((vector_size(32)));
  static constexpr Wide kLanes = {0, 1, 2, 3};
  JACKSCREW_INLINE static Wide product(Wide a, uint32_t b) {
    return (Wide)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
  }
#endif
  typedef uint32_t Narrow __attribute__((vector_size(4 * kPairs)));
};

}  // namespace jackscrew::JACKSCREW_ROW_TARGET
