// Dot products of rows of codes of up to eight bits with a vector x, for the CPU instruction set
// JACKSCREW_ROW_TARGET: what row_cpu.h gives to row kernels as Team::Dot.
//
// Both operands become 16-bit integers. Codes do by a mask or a table. x is rounded in groups of
// 32 elements, the largest magnitude of a group to Numbers::kLargestX, which is at most 2^15 - 1:
// an error of at most 2^-15 of that magnitude, a hundred times less than bf16's. Products are
// summed in 32 bits without error, eight to a lane; a lane is then converted to f32 and multiplied
// by the scales of both operands. In f32 throughout the conversion of every code would take longer
// than reading it from memory.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/row_dot.h"
#include "kernels/row_dot_vectors_cpu.h"

namespace jackscrew::JACKSCREW_ROW_TARGET {

class Dot : public DotVectors {
 public:
  // x as prepare() leaves it.
  struct Input {
    const int16_t* numbers;  // [vectors, 4, 8 * kLanes], as Numbers::split() has the codes
    const float* scales;     // as DotScales has them, times Numbers::kUnit
    const float* sums;       // of rounded x, likewise
    // The rest of it, from group `group` on, the first of a vector.
    JACKSCREW_INLINE Input from(int64_t group, DotScales spacing) const {
      const int64_t place = group * dot_stride(spacing);
      return {numbers + group * kGroup, scales + place, sums + place};
    }
  };
  template <DotScales kSpacing>
  struct Buffer {
    static constexpr int64_t kStride = dot_stride(kSpacing);
    static constexpr int64_t kFloats = kColumns / kGroup * kStride + 8;  // read by eights
    alignas(64) int16_t numbers[kColumns];
    float scales[kFloats];
    float sums[kFloats];
    JACKSCREW_INLINE Input input() const { return {numbers, scales, sums}; }

    // Sets all of these for x [count], a multiple of 32. A value that is not finite makes its
    // group's scale not finite.
    template <class Numbers, DotLayout kLayout>
    JACKSCREW_INLINE void prepare(const float* x, int64_t count) {
      const int64_t groups = count / kGroup;
      for (int64_t i = 0; i < groups * kStride + 8; ++i) scales[i] = sums[i] = 0.0f;
      const int64_t full = count / kVector * kVector;
      for (int64_t i = full; i < full + (full < count ? kVector : 0); ++i) numbers[i] = 0;
      for (int64_t group = 0; group < groups; ++group) {
        __m256i words[2];
        float totals[2];
        const float scale = round_group(x + group * kGroup, Numbers::kLargestX, words, totals);
        float* to = scales + group * kStride;
        float* to_sums = sums + group * kStride;
        to[0] = Numbers::kUnit * scale;
        if constexpr (kSpacing == DotScales::half_groups) {
          to[1] = to[0];
          to_sums[0] = scale * totals[0];
          to_sums[1] = scale * totals[1];
        } else {
          to_sums[kStride - 1] = scale * (totals[0] + totals[1]);
        }
        if constexpr (kLayout == DotLayout::bytes) {
          auto* in_order = reinterpret_cast<__m256i*>(numbers + group * kGroup);
          _mm256_storeu_si256(in_order, words[0]);
          _mm256_storeu_si256(in_order + 1, words[1]);
        } else {
          put_group<Numbers, kLayout>(words, static_cast<int>(group % kLanes),
                                      numbers + group / kLanes * kVector);
        }
      }
    }
  };

  // Eight scales.
  struct Scales {
    __m256 values;
    JACKSCREW_INLINE static Scales load(const float* from) { return {_mm256_loadu_ps(from)}; }
    JACKSCREW_INLINE Scales times(float factor) const {
      return {_mm256_mul_ps(values, _mm256_set1_ps(factor))};
    }
    JACKSCREW_INLINE Scales times(const float* factors) const {
      return {_mm256_mul_ps(values, _mm256_loadu_ps(factors))};
    }
    JACKSCREW_INLINE Scales plus(float offset) const {
      return {_mm256_add_ps(values, _mm256_set1_ps(offset))};
    }
    JACKSCREW_INLINE float first() const { return _mm256_cvtss_f32(values); }
    JACKSCREW_INLINE float second() const {
      return _mm_cvtss_f32(_mm_movehdup_ps(_mm256_castps256_ps128(values)));
    }
    // Scale i in all lanes.
    JACKSCREW_INLINE Floats all(int i) const {
#if defined(__AVX512F__)
      return _mm512_maskz_permutexvar_ps(kAll, _mm512_set1_epi32(i),
                                         _mm512_castps256_ps512(values));
#else
      return _mm256_permutevar8x32_ps(values, _mm256_set1_epi32(i));
#endif
    }
    // Scale a in all of lane 0, b in lane 1 ...
#if defined(__AVX512F__)
    JACKSCREW_INLINE Floats lanes(int a, int b, int c, int d) const {
      const __m512i which = _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
      return _mm512_maskz_permutexvar_ps(kAll, which, _mm512_castps256_ps512(values));
    }
    // Scale first + step * lane in each lane.
    JACKSCREW_INLINE Floats lanes(int first, int step) const {
      return lanes(first, first + step, first + 2 * step, first + 3 * step);
    }
#else
    JACKSCREW_INLINE Floats lanes(int first, int step) const {
      const int second = first + step;
      return _mm256_permutevar8x32_ps(
          values, _mm256_setr_epi32(first, first, first, first, second, second, second, second));
    }
#endif
    // Scale first + step * (lane / 2) in each lane.
    JACKSCREW_INLINE Floats pairs_of_lanes(int first, int step) const {
#if defined(__AVX512F__)
      return lanes(first, first, first + step, first + step);
#else
      static_cast<void>(step);  // one pair
      return lanes(first, 0);
#endif
    }
  };

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

  // The same of bytes from -128 to 127.
  JACKSCREW_INLINE static Scales signed_bytes(uint64_t word) {
    const __m128i of_word = _mm_cvtsi64_si128(static_cast<int64_t>(word));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(of_word))};
  }

  // 2^(byte - 128) for the bytes of a word, the lowest first; subnormal for bytes of 0 and 1.
  JACKSCREW_INLINE static Scales powers(uint64_t word) {
    const __m256i exponents = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(word)));
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(exponents, one), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), exponents);
    const __m256i is_normal = _mm256_cmpgt_epi32(exponents, one);
    return {_mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal))};
  }

  // to[i] = table[codes[i]]. One by one, floats that are then read by vectors would stall them.
  JACKSCREW_INLINE static void look_up(const float* table, const uint8_t* codes, int64_t count,
                                       float* to) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i));
      _mm256_storeu_ps(to + i, _mm256_i32gather_ps(table, _mm256_cvtepu8_epi32(eight), 4));
    }
    for (; i < count; ++i) to[i] = table[codes[i]];
  }

  // Adds eight products of offsets with sums of x.
  JACKSCREW_INLINE void add_offsets(const Scales& offsets, const float* sums) {
    offsets_ = _mm256_fmadd_ps(offsets.values, _mm256_loadu_ps(sums), offsets_);
  }

  // Codes: kCount lanes that lie `stride` bytes apart, the others 0 ...
  template <int kCount>
  JACKSCREW_INLINE static Integers codes(const uint8_t* from, int64_t stride) {
    static_assert(kCount >= 1 && kCount <= kLanes);
    __m256i two[2];
    each<2>([&](int half) {
      const uint8_t* at = from + 2 * half * stride;
      two[half] = 2 * half + 1 < kCount ? _mm256_inserti128_si256(_mm256_castsi128_si256(load(at)),
                                                                  load(at + stride), 1)
                  : 2 * half < kCount   ? _mm256_zextsi128_si256(load(at))
                                        : _mm256_setzero_si256();
    });
#if defined(__AVX512F__)
    return _mm512_maskz_inserti64x4(0xFF, _mm512_castsi256_si512(two[0]), two[1], 1);
#else
    return two[0];
#endif
  }
  // ... or a vector as it lies.
  JACKSCREW_INLINE static Integers codes(const uint8_t* from) {
#if defined(__AVX512F__)
    return _mm512_loadu_si512(from);
#else
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
#endif
  }

  // Adds the products of a vector of codes with x [4, 8 * kLanes], times a scale for each lane ...
  template <class Numbers>
  JACKSCREW_INLINE void add(const Numbers& numbers, Integers codes, Floats scales,
                            const int16_t* x) {
    Integers low, high;
    multiply(numbers, codes, x, &low, &high);
    sums_[0] = multiply_add(to_floats(sum(low, high)), scales, sums_[0]);
  }
  // ... or one for the low nibbles of each and one for the high ones.
  template <class Numbers>
  JACKSCREW_INLINE void add(const Numbers& numbers, Integers codes, Floats low_scales,
                            Floats high_scales, const int16_t* x) {
    Integers low, high;
    multiply(numbers, codes, x, &low, &high);
    sums_[0] = multiply_add(to_floats(low), low_scales, sums_[0]);
    sums_[1] = multiply_add(to_floats(high), high_scales, sums_[1]);
  }

  // Bytes of 32 elements in order.
  using Bytes32 = __m256i;
  JACKSCREW_INLINE static Bytes32 load_bytes(const uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  // The nibbles of 16 bytes, of which byte i holds elements i (low) and i + 16.
  JACKSCREW_INLINE static Bytes32 load_halves(const uint8_t* from) {
    const __m128i both = load(from);
    const __m128i mask = _mm_set1_epi8(15);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_and_si128(both, mask)),
                                   _mm_and_si128(_mm_srli_epi16(both, 4), mask), 1);
  }
  // Byte i is `value` where bit i of the word is set, else 0.
  JACKSCREW_INLINE static Bytes32 spread_bits(uint32_t word, int value) {
    const __m256i all = _mm256_set1_epi32(static_cast<int32_t>(word));
    const __m256i of_byte =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i bits = _mm256_and_si256(_mm256_shuffle_epi8(all, of_byte), bit);
    const __m256i is_set = _mm256_cmpeq_epi8(bits, bit);
    return _mm256_and_si256(is_set, _mm256_set1_epi8(static_cast<char>(value)));
  }
  // Returns (byte >> shift, or byte << -shift) & mask of each byte. The mask leaves no bit of a
  // neighbour.
  JACKSCREW_INLINE static Bytes32 bits(Bytes32 bytes, int shift, int mask) {
    const Bytes32 shifted =
        shift < 0 ? _mm256_slli_epi16(bytes, -shift) : _mm256_srli_epi16(bytes, shift);
    return _mm256_and_si256(shifted, _mm256_set1_epi8(static_cast<char>(mask)));
  }
  JACKSCREW_INLINE static Bytes32 either(Bytes32 a, Bytes32 b) {
    return _mm256_or_si256(a, b);
  }
  JACKSCREW_INLINE static Bytes32 minus(Bytes32 bytes, int offset) {
    return _mm256_sub_epi8(bytes, _mm256_set1_epi8(static_cast<char>(offset)));
  }

  // Adds the products of 32 bytes, from -128 to 127, with x [32], times scale i ...
  JACKSCREW_INLINE void add_bytes(Bytes32 bytes, const Scales& scales, int i, const int16_t* x) {
#if defined(__AVX512F__)
    const Integers sums = products(_mm512_maskz_cvtepi8_epi16(kAllWords, bytes), x);
#else
    const Integers low = products(_mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes)), x);
    const Integers high =
        products(_mm256_cvtepi8_epi16(_mm256_extracti128_si256(bytes, 1)), x + 16);
    const Integers sums = sum(low, high);
#endif
    sums_[0] = multiply_add(to_floats(sums), scales.all(i), sums_[0]);
  }
  // ... or times scale i for the first 16 and i + 1 for the others.
  JACKSCREW_INLINE void add_half_groups(Bytes32 bytes, const Scales& scales, int i,
                                        const int16_t* x) {
#if defined(__AVX512F__)
    const Integers sums = products(_mm512_maskz_cvtepi8_epi16(kAllWords, bytes), x);
    sums_[0] = multiply_add(to_floats(sums), scales.lanes(i, i, i + 1, i + 1), sums_[0]);
#else
    const Integers low = products(_mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes)), x);
    const Integers high =
        products(_mm256_cvtepi8_epi16(_mm256_extracti128_si256(bytes, 1)), x + 16);
    sums_[0] = multiply_add(to_floats(low), scales.all(i), sums_[0]);
    sums_[1] = multiply_add(to_floats(high), scales.all(i + 1), sums_[1]);
#endif
  }

  // Adds the products of 32 integers with x [32], times a scale.
  JACKSCREW_INLINE void add_words(const Words& words, float scale, const int16_t* x) {
#if defined(__AVX512F__)
    const Floats scales = _mm512_set1_ps(scale);
#else
    const Floats scales = _mm256_set1_ps(scale);
#endif
    sums_[0] = multiply_add(to_floats(products(words, x)), scales, sums_[0]);
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
  // Eight words each.
  struct Halves {
    __m128i even, odd;
  };
  JACKSCREW_INLINE static Halves deinterleaved(__m256i words) {
    const __m256i in_lanes =
        _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                         0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m256i whole = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(words, in_lanes), 0xD8);
    return {_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)};
  }
  JACKSCREW_INLINE static __m256i joined(__m128i first, __m128i second) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
  }

  // Puts the rounded x of group `group` of a vector where the numbers of its codes will be.
  template <class Numbers, DotLayout kLayout>
  JACKSCREW_INLINE static void put_group(const __m256i (&words)[2], int group, int16_t* vector) {
    const auto put = [&](int number, int lane, __m128i eight) {
      int16_t* to = vector + (number * kLanes + lane) * 8;
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), eight);
    };
    const Halves first = deinterleaved(words[0]);
    const Halves second = deinterleaved(words[1]);
    if constexpr (kLayout == DotLayout::pairs) {
      if constexpr (Numbers::kInterleaved) {
        const Halves high = deinterleaved(joined(first.even, second.even));
        const Halves low = deinterleaved(joined(first.odd, second.odd));
        put(0, group, low.even);
        put(1, group, high.even);
        put(2, group, low.odd);
        put(3, group, high.odd);
      } else {
        put(0, group, first.odd);
        put(1, group, first.even);
        put(2, group, second.odd);
        put(3, group, second.even);
      }
    } else if constexpr (kLayout == DotLayout::groups) {
      static_assert(Numbers::kInterleaved, "no format needs the other order");
      const int high = group % 2;
      const int lane = group - high;
      put(high, lane, first.even);
      put(2 + high, lane, first.odd);
      put(high, lane + 1, second.even);
      put(2 + high, lane + 1, second.odd);
    } else if constexpr (Numbers::kInterleaved) {
      put(0, group, first.even);
      put(1, group, second.even);
      put(2, group, first.odd);
      put(3, group, second.odd);
    } else {
      put(0, group, _mm256_castsi256_si128(words[0]));
      put(1, group, _mm256_castsi256_si128(words[1]));
      put(2, group, _mm256_extracti128_si256(words[0], 1));
      put(3, group, _mm256_extracti128_si256(words[1], 1));
    }
  }

  // Rounds 32 floats so that the largest magnitude becomes `largest`. Returns the scale; `totals`
  // are the sums of the integers of each half.
  JACKSCREW_INLINE static float round_group(const float* x, int largest, __m256i (&words)[2],
                                            float (&totals)[2]) {
    __m256 eight[4];
    // Magnitudes compare as integers, with infinity and then NaN above all others.
    __m256i most = _mm256_setzero_si256();
    each<4>([&](int i) {
      eight[i] = _mm256_loadu_ps(x + 8 * i);
      const __m256i magnitudes =
          _mm256_and_si256(_mm256_castps_si256(eight[i]), _mm256_set1_epi32(0x7FFFFFFF));
      most = _mm256_max_epi32(most, magnitudes);
    });
    const __m128i four =
        _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    const __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
    const __m128i one = _mm_max_epi32(two, _mm_shuffle_epi32(two, 1));
    const float magnitude = _mm_cvtss_f32(_mm_castsi128_ps(one));
    // The inverse of a magnitude below 2^-113 would be infinite.
    const float inverse = magnitude < 0x1p-113f ? 0.0f : static_cast<float>(largest) / magnitude;
    const __m256 factor = _mm256_set1_ps(inverse);
    each<2>([&](int half) {
      words[half] = words_of(_mm256_mul_ps(eight[2 * half], factor),
                             _mm256_mul_ps(eight[2 * half + 1], factor));
      totals[half] =
          lane_sum(_mm256_cvtepi32_ps(_mm256_madd_epi16(words[half], _mm256_set1_epi16(1))));
    });
    return magnitude / static_cast<float>(largest);
  }

  template <class Numbers>
  JACKSCREW_INLINE static void multiply(const Numbers& numbers, Integers codes, const int16_t* x,
                                        Integers* low, Integers* high) {
    Integers words[4];
    numbers.split(codes, words);
    *low = sum(products(words[0], x), products(words[2], x + 2 * 8 * kLanes));
    *high = sum(products(words[1], x + 8 * kLanes), products(words[3], x + 3 * 8 * kLanes));
  }

#if defined(__AVX512F__)
  Floats sums_[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
#else
  Floats sums_[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
#endif
  __m256 offsets_ = _mm256_setzero_ps();
};

}  // namespace jackscrew::JACKSCREW_ROW_TARGET
