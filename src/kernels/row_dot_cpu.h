// Products of one row of codes of four bits with a vector, for the CPU instruction set
// JACKSCREW_ROW_TARGET: what row_cpu.h gives to row kernels as Team::Dot. All is f32; scales are
// widened several at a time, and a scale multiplies the sum of its group, not each element.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/philox.h"

namespace jackscrew::JACKSCREW_ROW_TARGET {

class Dot {
 public:
#if defined(__AVX512F__)
  using Vector = __m512;
#else
  using Vector = __m256;
#endif

  // f(i) for i in [0, kCount), of which the compiler knows every i.
  template <int kCount, class F>
  JACKSCREW_INLINE static void each(const F& f) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) f(i);
  }

  // Sums of each 32 of x [count], in to[stride - 1], to[2 * stride - 1] ..., with 0 between, and
  // after them as many 0 as add_offsets() may read beyond.
  static constexpr int64_t kGroup = 32;
  static constexpr int64_t kBeyond = 8;
  JACKSCREW_INLINE static void sum_groups(const float* x, int64_t count, int64_t stride,
                                          float* to) {
    const int64_t size = count / kGroup * stride + kBeyond;
    for (int64_t i = 0; i < size; ++i) to[i] = 0.0f;
    for (int64_t group = 0; group < count / kGroup; ++group) {
      const float* of = x + group * kGroup;
      __m256 sum = _mm256_loadu_ps(of);
      for (int i = 8; i < kGroup; i += 8) sum = _mm256_add_ps(sum, _mm256_loadu_ps(of + i));
      to[(group + 1) * stride - 1] = lane_sum(sum);
    }
  }

  // Eight scales.
  struct Scales {
    __m256 values;
    JACKSCREW_INLINE Scales times(float factor) const {
      return {_mm256_mul_ps(values, _mm256_set1_ps(factor))};
    }
    JACKSCREW_INLINE Scales plus(float offset) const {
      return {_mm256_add_ps(values, _mm256_set1_ps(offset))};
    }
    JACKSCREW_INLINE float first() const { return _mm256_cvtss_f32(values); }
    JACKSCREW_INLINE float second() const {
      return _mm_cvtss_f32(_mm_movehdup_ps(_mm256_castps256_ps128(values)));
    }
    // Number i in all lanes.
    JACKSCREW_INLINE Vector all(int i) const {
#if defined(__AVX512F__)
      return _mm512_maskz_permutexvar_ps(kAll, _mm512_set1_epi32(i),
                                         _mm512_castps256_ps512(values));
#else
      return _mm256_permutevar8x32_ps(values, _mm256_set1_epi32(i));
#endif
    }
  };

  // One scale in all lanes.
  JACKSCREW_INLINE static Vector all(float scale) {
#if defined(__AVX512F__)
    return _mm512_set1_ps(scale);
#else
    return _mm256_set1_ps(scale);
#endif
  }

  // The kEach f16 that kBlocks blocks begin with, `stride` bytes apart: number i of block b is
  // b * kEach + i. The rest is 0.
  template <int kEach, int kBlocks>
  JACKSCREW_INLINE static Scales halves(const uint8_t* from, int64_t stride) {
    static_assert(kEach * kBlocks <= 8 && (kEach == 1 || kEach == 2));
    constexpr int kBits = 16 * kEach;
    uint64_t words[2] = {};  // joined by the units for integers, which have little else to do
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      uint64_t word = 0;
      __builtin_memcpy(&word, from + b * stride, 2 * kEach);
      words[b * kBits / 64] |= word << (b * kBits % 64);
    }
    return {_mm256_cvtph_ps(
        _mm_set_epi64x(static_cast<int64_t>(words[1]), static_cast<int64_t>(words[0])))};
  }

  // The bytes of a word, the lowest first.
  JACKSCREW_INLINE static Scales bytes(uint64_t word) {
    const __m128i of_word = _mm_cvtsi64_si128(static_cast<int64_t>(word));
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(of_word))};
  }

  // Adds eight products of offsets with what sum_groups() made.
  JACKSCREW_INLINE void add_offsets(const Scales& offsets, const float* sums) {
    offsets_ = _mm256_fmadd_ps(offsets.values, _mm256_loadu_ps(sums), offsets_);
  }

  // What a code stands for: itself ...
  struct Whole {
#if defined(__AVX512F__)
    // Low codes are looked up and high ones converted, by units that work at the same time.
    JACKSCREW_INLINE __m512 low(__m512i codes) const {
      const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      return _mm512_maskz_permutexvar_ps(kAll, codes, numbers);
    }
    JACKSCREW_INLINE __m512 high(__m512i codes) const {
      return _mm512_maskz_cvtepi32_ps(kAll, _mm512_maskz_srli_epi32(kAll, codes, 4));
    }
#else
    JACKSCREW_INLINE __m256 low(__m256i codes) const {
      return _mm256_cvtepi32_ps(_mm256_and_si256(codes, _mm256_set1_epi32(15)));
    }
    JACKSCREW_INLINE __m256 high(__m256i codes) const {
      return _mm256_cvtepi32_ps(_mm256_srli_epi32(codes, 4));
    }
#endif
  };
  // ... or a number of a table, times a scale.
  struct Table {
    JACKSCREW_INLINE explicit Table(const float (&numbers)[16], float scale = 1.0f)
#if defined(__AVX512F__)
        : all(_mm512_mul_ps(_mm512_loadu_ps(numbers), _mm512_set1_ps(scale))) {
    }
    __m512 all;
    JACKSCREW_INLINE __m512 low(__m512i codes) const {
      return _mm512_maskz_permutexvar_ps(kAll, codes, all);
    }
    JACKSCREW_INLINE __m512 high(__m512i codes) const {
      return low(_mm512_maskz_srli_epi32(kAll, codes, 4));
    }
#else
        : first(_mm256_mul_ps(_mm256_loadu_ps(numbers), _mm256_set1_ps(scale))),
          second(_mm256_mul_ps(_mm256_loadu_ps(numbers + 8), _mm256_set1_ps(scale))) {
    }
    __m256 first, second;  // the fourth bit, moved to the sign, chooses between them
    JACKSCREW_INLINE __m256 low(__m256i codes) const {
      return _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, codes),
                              _mm256_permutevar8x32_ps(second, codes),
                              _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
    }
    JACKSCREW_INLINE __m256 high(__m256i codes) const {
      return low(_mm256_srli_epi32(codes, 4));
    }
#endif
  };

  // A table of whole numbers from -128 to 127.
#if defined(__AVX512F__)
  using WholeTable = Table;
#else
  struct WholeTable {
    JACKSCREW_INLINE explicit WholeTable(const float (&numbers)[16])
        : bytes(_mm_packs_epi16(eight(numbers), eight(numbers + 8))) {}
    __m128i bytes;
    JACKSCREW_INLINE __m128i of(__m128i codes) const {
      return _mm_shuffle_epi8(bytes, _mm_and_si128(codes, _mm_set1_epi8(15)));
    }

   private:
    JACKSCREW_INLINE static __m128i eight(const float* numbers) {
      return _mm_packs_epi32(_mm_cvtps_epi32(_mm_loadu_ps(numbers)),
                             _mm_cvtps_epi32(_mm_loadu_ps(numbers + 4)));
    }
  };
  JACKSCREW_INLINE void add_halves(const WholeTable& numbers, const uint8_t* from, Vector scale,
                                   const float* x) {
    const __m128i codes = load(from);
    const __m128i low = numbers.of(codes);
    const __m128i high = numbers.of(_mm_srli_epi16(codes, 4));
    const auto floats = [](__m128i bytes) {
      return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    };
    __m256 sum = _mm256_mul_ps(floats(low), _mm256_loadu_ps(x));
    sum = _mm256_fmadd_ps(floats(_mm_srli_si128(low, 8)), _mm256_loadu_ps(x + 8), sum);
    sum = _mm256_fmadd_ps(floats(high), _mm256_loadu_ps(x + 16), sum);
    sum = _mm256_fmadd_ps(floats(_mm_srli_si128(high, 8)), _mm256_loadu_ps(x + 24), sum);
    add(0, sum, scale);
  }
#endif

  // Adds the scaled products of x [32] with sixteen bytes, of which byte i holds elements i (low
  // nibble) and i + 16.
  template <class Numbers>
  JACKSCREW_INLINE void add_halves(const Numbers& numbers, const uint8_t* from, Vector scale,
                                   const float* x) {
#if defined(__AVX512F__)
    const __m512i codes = widened(load(from));
    const __m512 sum = _mm512_mul_ps(numbers.low(codes), _mm512_loadu_ps(x));
    add(0, _mm512_fmadd_ps(numbers.high(codes), _mm512_loadu_ps(x + 16), sum), scale);
#else
    const __m256i first = widened(load_eight(from));
    const __m256i second = widened(load_eight(from + 8));
    __m256 sum = _mm256_mul_ps(numbers.low(first), _mm256_loadu_ps(x));
    sum = _mm256_fmadd_ps(numbers.low(second), _mm256_loadu_ps(x + 8), sum);
    sum = _mm256_fmadd_ps(numbers.high(first), _mm256_loadu_ps(x + 16), sum);
    add(0, _mm256_fmadd_ps(numbers.high(second), _mm256_loadu_ps(x + 24), sum), scale);
#endif
  }

  // The same of x [64] and 32 bytes, of which byte i holds elements i and i + 32, each 32 with a
  // scale of their own.
  template <class Numbers>
  JACKSCREW_INLINE void add_groups(const Numbers& numbers, const uint8_t* from, Vector low_scale,
                                   Vector high_scale, const float* x) {
#if defined(__AVX512F__)
    const __m512i first = widened(load(from));
    const __m512i second = widened(load(from + 16));
    const __m512 low = _mm512_mul_ps(numbers.low(first), _mm512_loadu_ps(x));
    const __m512 high = _mm512_mul_ps(numbers.high(first), _mm512_loadu_ps(x + 32));
    add(0, _mm512_fmadd_ps(numbers.low(second), _mm512_loadu_ps(x + 16), low), low_scale);
    add(1, _mm512_fmadd_ps(numbers.high(second), _mm512_loadu_ps(x + 48), high), high_scale);
#else
    __m256 low = _mm256_setzero_ps();
    __m256 high = _mm256_setzero_ps();
#pragma GCC unroll 4
    for (int at = 0; at < 32; at += 8) {
      const __m256i codes = widened(load_eight(from + at));
      low = _mm256_fmadd_ps(numbers.low(codes), _mm256_loadu_ps(x + at), low);
      high = _mm256_fmadd_ps(numbers.high(codes), _mm256_loadu_ps(x + 32 + at), high);
    }
    add(0, low, low_scale);
    add(1, high, high_scale);
#endif
  }

  // Adds the products of x [32] with sixteen bytes, of which byte i holds elements 2 i (high
  // nibble) and 2 i + 1, in a table that is scaled already.
  JACKSCREW_INLINE void add_pairs(const Table& numbers, const uint8_t* from, const float* x) {
    const __m128i low = load(from);
    const __m128i high = _mm_srli_epi16(low, 4);
    const __m128i first = _mm_unpacklo_epi8(high, low);
    const __m128i second = _mm_unpackhi_epi8(high, low);
#if defined(__AVX512F__)
    add(0, numbers.low(widened(first)), _mm512_loadu_ps(x));
    add(1, numbers.low(widened(second)), _mm512_loadu_ps(x + 16));
#else
    add(0, numbers.low(widened(first)), _mm256_loadu_ps(x));
    add(1, numbers.low(widened(_mm_srli_si128(first, 8))), _mm256_loadu_ps(x + 8));
    add(0, numbers.low(widened(second)), _mm256_loadu_ps(x + 16));
    add(1, numbers.low(widened(_mm_srli_si128(second, 8))), _mm256_loadu_ps(x + 24));
#endif
  }

  JACKSCREW_INLINE float total() const {
#if defined(__AVX512F__)
    const __m512 sum = _mm512_add_ps(sums_[0], sums_[1]);
    __m256 halves[2];
    __builtin_memcpy(halves, &sum, sizeof halves);
    return lane_sum(_mm256_add_ps(_mm256_add_ps(halves[0], halves[1]), offsets_));
#else
    return lane_sum(_mm256_add_ps(_mm256_add_ps(sums_[0], sums_[1]), offsets_));
#endif
  }

 private:
  JACKSCREW_INLINE static float lane_sum(__m256 eight) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  JACKSCREW_INLINE static __m128i load(const uint8_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }

#if defined(__AVX512F__)
  static constexpr uint16_t kAll = 0xFFFF;  // GCC 12 warns of its own unmasked forms
  JACKSCREW_INLINE static __m512i widened(__m128i bytes) {
    return _mm512_maskz_cvtepu8_epi32(kAll, bytes);
  }
  JACKSCREW_INLINE void add(int sum, __m512 a, __m512 b) {
    sums_[sum] = _mm512_fmadd_ps(a, b, sums_[sum]);
  }
  __m512 sums_[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
#else
  JACKSCREW_INLINE static __m128i load_eight(const uint8_t* from) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  }
  JACKSCREW_INLINE static __m256i widened(__m128i bytes) {
    return _mm256_cvtepu8_epi32(bytes);
  }
  JACKSCREW_INLINE void add(int sum, __m256 a, __m256 b) {
    sums_[sum] = _mm256_fmadd_ps(a, b, sums_[sum]);
  }
  __m256 sums_[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
#endif
  __m256 offsets_ = _mm256_setzero_ps();
};

}  // namespace jackscrew::JACKSCREW_ROW_TARGET
