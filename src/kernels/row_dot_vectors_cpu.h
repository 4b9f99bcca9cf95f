// The vectors of kernels/row_dot_cpu.h, for the CPU instruction set JACKSCREW_ROW_TARGET, and how
// codes become 16-bit integers.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/inline.h"

namespace jackscrew::JACKSCREW_ROW_TARGET {

struct DotVectors {
  // A vector of codes has kLanes lanes of 16 bytes, each 32 elements.
#if defined(__AVX512F__)
  static constexpr int kLanes = 4;
  using Integers = __m512i;
  using Floats = __m512;
#else
  static constexpr int kLanes = 2;
  using Integers = __m256i;
  using Floats = __m256;
#endif
  static constexpr int64_t kGroup = 32;
  static constexpr int64_t kVector = kGroup * kLanes;  // elements
  // Columns at a time: their x, 16 KiB, stays in the nearest cache.
  static constexpr int64_t kColumns = 8192;

  // f(i) for i in [0, kCount), unrolled.
  template <int kCount, class F>
  JACKSCREW_INLINE static void each(const F& f) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) f(i);
  }

  JACKSCREW_INLINE static float lane_sum(__m256 eight) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  JACKSCREW_INLINE static __m128i load(const uint8_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  // Sixteen floats as 16-bit integers, rounded to nearest even, in order.
  JACKSCREW_INLINE static __m256i words_of(__m256 first, __m256 second) {
    const __m256i packed =
        _mm256_packs_epi32(_mm256_cvtps_epi32(first), _mm256_cvtps_epi32(second));
    return _mm256_permute4x64_epi64(packed, 0xD8);
  }

#if defined(__AVX512F__)
  static constexpr uint16_t kAll = 0xFFFF;  // GCC 12 warns of its own unmasked forms
  static constexpr uint32_t kAllWords = 0xFFFFFFFF;
  JACKSCREW_INLINE static Integers filled(int16_t value) {
    return _mm512_set1_epi16(value);
  }
  JACKSCREW_INLINE static Integers bits_and(Integers a, Integers b) {
    return _mm512_and_si512(a, b);
  }
  template <int kBits>
  JACKSCREW_INLINE static Integers shifted(Integers words) {
    return _mm512_maskz_srli_epi16(kAllWords, words, kBits);
  }
  // Sums of two products each, 32 bits.
  JACKSCREW_INLINE static Integers products(Integers words, const int16_t* x) {
    return _mm512_maskz_madd_epi16(kAll, words, _mm512_loadu_si512(x));
  }
  JACKSCREW_INLINE static Integers sum(Integers a, Integers b) {
    return _mm512_add_epi32(a, b);
  }
  JACKSCREW_INLINE static Floats to_floats(Integers sums) {
    return _mm512_maskz_cvtepi32_ps(kAll, sums);
  }
  JACKSCREW_INLINE static Floats multiply_add(Floats a, Floats b, Floats c) {
    return _mm512_fmadd_ps(a, b, c);
  }
#else
  JACKSCREW_INLINE static Integers filled(int16_t value) {
    return _mm256_set1_epi16(value);
  }
  JACKSCREW_INLINE static Integers bits_and(Integers a, Integers b) {
    return _mm256_and_si256(a, b);
  }
  template <int kBits>
  JACKSCREW_INLINE static Integers shifted(Integers words) {
    return _mm256_srli_epi16(words, kBits);
  }
  JACKSCREW_INLINE static Integers products(Integers words, const int16_t* x) {
    return _mm256_madd_epi16(words, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }
  JACKSCREW_INLINE static Integers sum(Integers a, Integers b) {
    return _mm256_add_epi32(a, b);
  }
  JACKSCREW_INLINE static Floats to_floats(Integers sums) {
    return _mm256_cvtepi32_ps(sums);
  }
  JACKSCREW_INLINE static Floats multiply_add(Floats a, Floats b, Floats c) {
    return _mm256_fmadd_ps(a, b, c);
  }
#endif

  // 32 integers of 16 bits, in order.
  static constexpr int kParts = 4 / kLanes;
  struct Words {
    Integers parts[kParts];
  };
  JACKSCREW_INLINE static Words difference(const Words& words, Integers subtrahend) {
    Words out;
#if defined(__AVX512F__)
    out.parts[0] = _mm512_maskz_sub_epi16(kAllWords, words.parts[0], subtrahend);
#else
    each<2>([&](int i) { out.parts[i] = _mm256_sub_epi16(words.parts[i], subtrahend); });
#endif
    return out;
  }
  // Sums of their products with x [32], of two or four to a lane of 32 bits.
  JACKSCREW_INLINE static Integers products(const Words& words, const int16_t* x) {
#if defined(__AVX512F__)
    return products(words.parts[0], x);
#else
    return sum(products(words.parts[0], x), products(words.parts[1], x + 16));
#endif
  }
  JACKSCREW_INLINE static Words widened(const int8_t* bytes) {
#if defined(__AVX512F__)
    return {{_mm512_maskz_cvtepi8_epi16(kAllWords, load_32(bytes))}};
#else
    const auto* at = reinterpret_cast<const uint8_t*>(bytes);
    return {{_mm256_cvtepi8_epi16(load(at)), _mm256_cvtepi8_epi16(load(at + 16))}};
#endif
  }
  JACKSCREW_INLINE static Words widened(const uint8_t* bytes) {
#if defined(__AVX512F__)
    return {{_mm512_maskz_cvtepu8_epi16(kAllWords, load_32(bytes))}};
#else
    return {{_mm256_cvtepu8_epi16(load(bytes)), _mm256_cvtepu8_epi16(load(bytes + 16))}};
#endif
  }

  // 32 codes of kBits bits as quant/packed.h packs them: of each plane the next bits.
  template <int kBits>
  JACKSCREW_INLINE static Words unpacked(const uint8_t* from) {
    if constexpr (kBits == 8) {
      return widened(from);
    } else {
      Words out{};
      int place = 0;
      const auto add = [&](const Words& plane, int bits) {
        each<kParts>(
            [&](int i) { out.parts[i] = or_shifted(out.parts[i], plane.parts[i], place); });
        place += bits;
        from += 4 * bits;
      };
      if constexpr ((kBits & 4) != 0) add(nibble_plane(from), 4);
      if constexpr ((kBits & 2) != 0) add(pair_plane(from), 2);
      if constexpr ((kBits & 1) != 0) add(bit_plane(from), 1);
      return out;
    }
  }

  // Numbers turn a vector of codes into four vectors of 16-bit integers, of low nibbles (0 and 2)
  // and of high ones (1 and 3). Where they are kInterleaved, those of even bytes are in vectors 0
  // and 1; else those of the first 8 bytes of each lane.

  // A code is the number itself.
  struct Whole {
    static constexpr int kLargestX = 32767;
    static constexpr float kUnit = 1.0f;  // what the integer 1 stands for
    static constexpr bool kInterleaved = true;
    JACKSCREW_INLINE void split(Integers codes, Integers (&words)[4]) const {
      const Integers mask = filled(15);
      words[0] = bits_and(codes, mask);
      words[1] = bits_and(shifted<4>(codes), mask);
      words[2] = bits_and(shifted<8>(codes), mask);
      words[3] = shifted<12>(codes);
    }
  };

  // Bytes from -128 to 127, for add_bytes() and add_half_groups().
  struct Bytes {
    static constexpr int kLargestX = 32767;
    static constexpr float kUnit = 1.0f;
  };

  // A code points at one of sixteen numbers times kScale, which are integers of at most kLargest
  // in magnitude, or rounded to such.
  template <int kLargest, int kScale = 1>
  struct Table {
    static constexpr int kMostX = (1 << 28) / kLargest - 1;  // eight products fit 32 bits
    static constexpr int kLargestX = kMostX < 32767 ? kMostX : 32767;
    static constexpr float kUnit = 1.0f / kScale;
#if defined(__AVX512F__)
    static constexpr bool kInterleaved = true;
    JACKSCREW_INLINE explicit Table(const float (&numbers)[16]) {
      const __m256i once = rounded(numbers);
      // The fifth bit of an index belongs to the next code: both values of it mean the same.
      twice = _mm512_maskz_inserti64x4(0xFF, _mm512_castsi256_si512(once), once, 1);
    }
    JACKSCREW_INLINE void split(Integers codes, Integers (&words)[4]) const {
      words[0] = at(codes);
      words[1] = at(shifted<4>(codes));
      words[2] = at(shifted<8>(codes));
      words[3] = at(shifted<12>(codes));
    }

   private:
    JACKSCREW_INLINE Integers at(Integers codes) const {
      return _mm512_maskz_permutexvar_epi16(kAllWords, codes, twice);
    }
    Integers twice;
#else
    static constexpr bool kInterleaved = false;
    JACKSCREW_INLINE explicit Table(const float (&numbers)[16]) {
      const __m256i once = rounded(numbers);
      const __m256i mask = _mm256_set1_epi16(255);
      low_bytes = both_lanes(_mm256_and_si256(once, mask));
      high_bytes = both_lanes(_mm256_srli_epi16(once, 8));
    }
    JACKSCREW_INLINE void split(Integers codes, Integers (&words)[4]) const {
      const Integers mask = _mm256_set1_epi8(15);
      each<2>([&](int high) {
        const Integers index = bits_and(high == 0 ? codes : shifted<4>(codes), mask);
        const Integers low_byte = _mm256_shuffle_epi8(low_bytes, index);
        const Integers high_byte = _mm256_shuffle_epi8(high_bytes, index);
        words[high] = _mm256_unpacklo_epi8(low_byte, high_byte);
        words[high + 2] = _mm256_unpackhi_epi8(low_byte, high_byte);
      });
    }

   private:
    JACKSCREW_INLINE static Integers both_lanes(__m256i words) {
      const __m128i bytes =
          _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
      return _mm256_broadcastsi128_si256(bytes);
    }
    Integers low_bytes, high_bytes;
#endif
    JACKSCREW_INLINE static __m256i rounded(const float (&numbers)[16]) {
      const __m256 scale = _mm256_set1_ps(static_cast<float>(kScale));
      return words_of(_mm256_mul_ps(_mm256_loadu_ps(numbers), scale),
                      _mm256_mul_ps(_mm256_loadu_ps(numbers + 8), scale));
    }
  };

 private:
  JACKSCREW_INLINE static __m256i load_32(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  // Each plane is widened so that the codes of a byte have a place of 16 bits each, and moved
  // there.
#if defined(__AVX512F__)
  JACKSCREW_INLINE static Integers or_shifted(Integers words, Integers plane, int place) {
    const auto bits = static_cast<unsigned>(place);
    return _mm512_or_si512(words, _mm512_maskz_slli_epi16(kAllWords, plane, bits));
  }
  JACKSCREW_INLINE static Words nibble_plane(const uint8_t* from) {
    const Integers wide = _mm512_maskz_cvtepu8_epi32(kAll, load(from));
    const Integers both = _mm512_or_si512(wide, _mm512_maskz_slli_epi32(kAll, wide, 12));
    return {{bits_and(both, filled(15))}};
  }
  JACKSCREW_INLINE static Words pair_plane(const uint8_t* from) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    const Integers wide = _mm512_maskz_cvtepu8_epi64(0xFF, bytes);
    const Integers two = _mm512_or_si512(wide, _mm512_maskz_slli_epi64(0xFF, wide, 28));
    const Integers four = _mm512_or_si512(two, _mm512_maskz_slli_epi64(0xFF, two, 14));
    return {{bits_and(four, filled(3))}};
  }
  JACKSCREW_INLINE static Words bit_plane(const uint8_t* from) {
    uint32_t word = 0;
    __builtin_memcpy(&word, from, sizeof word);
    return {{_mm512_maskz_set1_epi16(word, 1)}};
  }
#else
  JACKSCREW_INLINE static Integers or_shifted(Integers words, Integers plane, int place) {
    return _mm256_or_si256(words, _mm256_slli_epi16(plane, place));
  }
  JACKSCREW_INLINE static Words nibble_plane(const uint8_t* from) {
    const __m128i bytes = load(from);
    const auto half = [](__m128i eight) {
      const Integers wide = _mm256_cvtepu8_epi32(eight);
      return bits_and(_mm256_or_si256(wide, _mm256_slli_epi32(wide, 12)), filled(15));
    };
    return {{half(bytes), half(_mm_srli_si128(bytes, 8))}};
  }
  JACKSCREW_INLINE static Words pair_plane(const uint8_t* from) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    const auto half = [](__m128i four) {
      const Integers wide = _mm256_cvtepu8_epi64(four);
      const Integers two = _mm256_or_si256(wide, _mm256_slli_epi64(wide, 28));
      return bits_and(_mm256_or_si256(two, _mm256_slli_epi64(two, 14)), filled(3));
    };
    return {{half(bytes), half(_mm_srli_si128(bytes, 4))}};
  }
  JACKSCREW_INLINE static Words bit_plane(const uint8_t* from) {
    const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096,
                                          8192, 16384, static_cast<int16_t>(0x8000));
    const auto half = [&](const uint8_t* at) {
      int16_t word = 0;
      __builtin_memcpy(&word, at, sizeof word);
      const __m256i set = _mm256_cmpeq_epi16(_mm256_and_si256(filled(word), bit), bit);
      return _mm256_srli_epi16(set, 15);
    };
    return {{half(from), half(from + 2)}};
  }
#endif
};

}  // namespace jackscrew::JACKSCREW_ROW_TARGET
