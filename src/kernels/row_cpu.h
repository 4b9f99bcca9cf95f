// Compiles a .rows.h for the CPU instruction set JACKSCREW_ROW_TARGET (v3 or v4). Included first by
// the sources that cmake/RowKernels.cmake generates, and by nothing else.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define JACKSCREW_ROW_KERNEL(Args)                                \
  template <>                                                     \
  const RowKernel& row_kernel<Args>();                            \
  namespace JACKSCREW_ROW_TARGET {                                \
  void run_##Args(const void* args, int64_t begin, int64_t end);  \
  void run_##Args(const void* args, int64_t begin, int64_t end) { \
    run_rows(*static_cast<const Args*>(args), begin, end);        \
  }                                                               \
  }

#include "base/half.h"
#include "kernels/row_dot_cpu.h"
#include "kernels/row_kernel.h"
#include "kernels/row_operands.h"
#include "kernels/row_random_cpu.h"

namespace jackscrew::JACKSCREW_ROW_TARGET {

// An element of an operand.
template <class Operand>
struct Held {
  Operand operand;
  int64_t index;
  float value;

  JACKSCREW_INLINE Held(const Operand& of, int64_t i) : operand(of), index(i) {
    if constexpr (Operand::kReads) value = to_float(of.at[i]);
  }
  JACKSCREW_INLINE void put() const {
    if constexpr (Operand::kWrites) {
      operand.at[index] = from_float<typename Operand::Element>(value);
    }
  }
};

// One thread is the whole team: loops are simd loops, reductions may reassociate within the row.
struct Team : RandomTeam {
  template <class F>
  JACKSCREW_INLINE void each(int64_t n, F f) const {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) f(i);
  }

  // Copies an array that is among the kernel's arguments.
  template <int N>
  JACKSCREW_INLINE void copy_argument(const float (&from)[N], float* to) const {
    each(N, [&](int64_t i) { to[i] = from[i]; });
  }

  // Calls f(team, i) for i in [0, n). On a GPU teams of fewer threads share them out.
  template <class F>
  JACKSCREW_INLINE void each_apart(int64_t n, F f) const {
    for (int64_t i = 0; i < n; ++i) f(*this, i);
  }

  // Calls f(value of each operand...) for every element; f takes by reference what is written.
  template <class F, class... Operands>
  JACKSCREW_INLINE void elementwise(int64_t n, F f, Operands... operands) const {
    each(n, [&](int64_t i) { with_values(f, Held<Operands>(operands, i)...); });
  }

  // As `each`, but never vectorised: for elements that go to, or come from, scattered places.
  template <class F>
  JACKSCREW_INLINE void each_scalar(int64_t n, F f) const {
    for (int64_t i = 0; i < n; ++i) {
      f(i);
      __asm__ volatile("");  // keeps the compiler from vectorising
    }
  }

  // Calls f(row, column) for every element of a matrix.
  template <class F>
  JACKSCREW_INLINE void each(int64_t rows, int64_t columns, F f) const {
    for (int64_t row = 0; row < rows; ++row) {
      each(columns, [&](int64_t column) { f(row, column); });
    }
  }

  template <class F>
  JACKSCREW_INLINE float sum(int64_t n, F f) const {
    float total = 0.0f;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < n; ++i) total += f(i);
    return total;
  }

  template <class F>
  JACKSCREW_INLINE double sum_f64(int64_t n, F f) const {
    double total = 0.0;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < n; ++i) total += f(i);
    return total;
  }

  // The largest f(i) or `floor`, whichever is larger; `floor` for n == 0.
  template <class F>
  JACKSCREW_INLINE float max(int64_t n, float floor, F f) const {
    float best = floor;
#pragma omp simd reduction(max : best)
    for (int64_t i = 0; i < n; ++i) {
      const float value = f(i);
      best = value > best ? value : best;
    }
    return best;
  }

  // N accumulators for the loops of `each`, and their total.
  template <int64_t N>
  struct Sums {
    float values[N] = {};
    JACKSCREW_INLINE float& operator[](int64_t i) { return values[i]; }
  };
  template <int64_t N>
  JACKSCREW_INLINE float total(const Sums<N>& sums) const {
    return sum(N, [&](int64_t i) { return sums.values[i]; });
  }

  // Whether each thread decodes eight elements at a time: here vectors are as long as a group.
  static constexpr bool kHasEights = false;

  // Dot products of rows of codes have code of their own: see row_dot_cpu.h.
  static constexpr bool kHasDot = true;
  using Dot = JACKSCREW_ROW_TARGET::Dot;

  // Converts a single number. A loop over many should use to_float(), which vectorises.
  JACKSCREW_INLINE float half(f16 value) const {
    return _cvtsh_ss(value.bits);
  }

  // Sixteen bytes as integers, widened before the loop that uses them: GCC sizes the vectors of a
  // loop by its smallest type, and beside bytes would compute floats four at a time.
  struct Int32x16 {
    int32_t values[16];
    JACKSCREW_INLINE int32_t operator[](int64_t i) const { return values[i]; }
  };
  JACKSCREW_INLINE Int32x16 sixteen(const uint8_t* from) const {
    const __m128i bytes = load(from);
#if defined(__AVX512F__)
    return joined(_mm512_maskz_cvtepu8_epi32(kAll, bytes));
#else
    return joined(_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
#endif
  }
  JACKSCREW_INLINE Int32x16 sixteen(const int8_t* from) const {
    return widened(load(from));
  }
  // The signed bytes of two words, the lowest first.
  JACKSCREW_INLINE Int32x16 sixteen(uint64_t first, uint64_t second) const {
    return widened(_mm_set_epi64x(static_cast<int64_t>(second), static_cast<int64_t>(first)));
  }

  // Calls f(i, byte i as an integer).
  template <class Byte, class F>
  JACKSCREW_INLINE void each_byte(const Byte* bytes, int64_t n, F f) const {
    int64_t done = 0;
    for (; done + 16 <= n; done += 16) {
      const Int32x16 wide = sixteen(bytes + done);
      each(16, [&](int64_t i) { f(done + i, wide[i]); });
    }
    each(n - done, [&](int64_t i) { f(done + i, static_cast<int32_t>(bytes[done + i])); });
  }

  // The sum of f(i, byte i as an integer).
  template <class Byte, class F>
  JACKSCREW_INLINE float sum_bytes(const Byte* bytes, int64_t n, F f) const {
    Sums<16> lanes;
    int64_t done = 0;
    for (; done + 16 <= n; done += 16) {
      const Int32x16 wide = sixteen(bytes + done);
      each(16, [&](int64_t i) { lanes[i] += f(done + i, wide[i]); });
    }
    each(n - done,
         [&](int64_t i) { lanes[i] += f(done + i, static_cast<int32_t>(bytes[done + i])); });
    return total(lanes);
  }

  // Looks up sixteen numbers of a table: element i is table[bits[i] >> shift & 15].
  struct Float32x16 {
    float values[16];
    JACKSCREW_INLINE float operator[](int64_t i) const { return values[i]; }
  };
  JACKSCREW_INLINE Float32x16 lookup(const float (&table)[16], const Int32x16& bits,
                                     int shift) const {
    Float32x16 out;
#if defined(__AVX512F__)
    const __m512i index = _mm512_maskz_srli_epi32(kAll, _mm512_loadu_si512(bits.values),
                                                  static_cast<unsigned>(shift));
    _mm512_storeu_ps(out.values, _mm512_maskz_permutexvar_ps(kAll, index, _mm512_loadu_ps(table)));
#else
    const __m256 first = _mm256_loadu_ps(table);
    const __m256 second = _mm256_loadu_ps(table + 8);
    for (int half = 0; half < 16; half += 8) {
      const auto* from = reinterpret_cast<const __m256i*>(bits.values + half);
      const __m256i index = _mm256_srli_epi32(_mm256_loadu_si256(from), shift);
      // The fourth bit, moved to the sign, chooses between the halves of the table.
      _mm256_storeu_ps(out.values + half,
                       _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, index),
                                        _mm256_permutevar8x32_ps(second, index),
                                        _mm256_castsi256_ps(_mm256_slli_epi32(index, 28))));
    }
#endif
    return out;
  }

  // Unpacks 32 integers of kBits bits. They lie in planes as little-endian words: the low 4 bits of
  // all, then the next 2, then the next 1, those of 4, 2 and 1 that add up to kBits; 8 bits are
  // whole bytes.
  struct Int32x32 {
    int32_t values[32];
    JACKSCREW_INLINE int32_t operator[](int64_t i) const { return values[i]; }
  };
  template <int kBits>
  JACKSCREW_INLINE Int32x32 unpack(const uint8_t* from) const {
    Int32x32 out;
    if constexpr (kBits == 8) {
      const Int32x16 halves[] = {sixteen(from), sixteen(from + 16)};
      __builtin_memcpy(out.values, halves, sizeof out.values);
    } else {
#pragma GCC unroll 4
      for (int at = 0; at < 32; at += kInts) {
        Ints value = {};
        const uint8_t* plane = from;
        int place = 0;
        if constexpr ((kBits & 4) != 0) {
          value = plane_of<4>(plane, at);
          plane += 16;
          place = 4;
        }
        if constexpr ((kBits & 2) != 0) {
          value |= plane_of<2>(plane, at) << place;
          plane += 8;
          place += 2;
        }
        if constexpr ((kBits & 1) != 0) value |= plane_of<1>(plane, at) << place;
        __builtin_memcpy(out.values + at, &value, sizeof value);
      }
    }
    return out;
  }

  // Whether looking numbers up in a table is faster than computing them.
  static constexpr bool kHasTables = true;
  static constexpr bool kHasExponentials = false;  // a CPU keeps a row of logits in its cache
  // Looks up 32 numbers of a table by integers below 16.
  struct Float32x32 {
    float values[32];
    JACKSCREW_INLINE float operator[](int64_t i) const { return values[i]; }
  };
  JACKSCREW_INLINE Float32x32 lookup(const float (&table)[16], const Int32x32& index) const {
    Int32x16 halves[2];
    __builtin_memcpy(halves, index.values, sizeof halves);
    const Float32x16 found[] = {lookup(table, halves[0], 0), lookup(table, halves[1], 0)};
    Float32x32 out;
    __builtin_memcpy(out.values, found, sizeof found);
    return out;
  }

  // One value for each of a row's first N elements, for a later `each` over the same elements.
  template <class T, int64_t N>
  struct RowRegisters {
    T values[N];
    JACKSCREW_INLINE T& operator[](int64_t i) { return values[i]; }
  };

  // Memory that all loops of a row share; N is kSharedFloats of the kernel's struct.
  template <int64_t N>
  struct Shared {
    float values[N];
    JACKSCREW_INLINE float* data() { return values; }
  };

  // to [8, n] = from [n, 8] transposed; n is a multiple of 8.
  JACKSCREW_INLINE void transpose_eight(const float* from, int64_t n, float* to) const {
    for (int64_t i = 0; i < n; i += 8) {
      __m256 pairs[8], fours[8];
#pragma GCC unroll 4
      for (int row = 0; row < 8; row += 2) {
        const __m256 a = _mm256_loadu_ps(from + (i + row) * 8);
        const __m256 b = _mm256_loadu_ps(from + (i + row + 1) * 8);
        pairs[row] = _mm256_unpacklo_ps(a, b);
        pairs[row + 1] = _mm256_unpackhi_ps(a, b);
      }
#pragma GCC unroll 2
      for (int row = 0; row < 8; row += 4) {
        fours[row] = _mm256_shuffle_ps(pairs[row], pairs[row + 2], 0x44);
        fours[row + 1] = _mm256_shuffle_ps(pairs[row], pairs[row + 2], 0xEE);
        fours[row + 2] = _mm256_shuffle_ps(pairs[row + 1], pairs[row + 3], 0x44);
        fours[row + 3] = _mm256_shuffle_ps(pairs[row + 1], pairs[row + 3], 0xEE);
      }
#pragma GCC unroll 4
      for (int row = 0; row < 4; ++row) {
        _mm256_storeu_ps(to + row * n + i,
                         _mm256_permute2f128_ps(fours[row], fours[row + 4], 0x20));
        _mm256_storeu_ps(to + (row + 4) * n + i,
                         _mm256_permute2f128_ps(fours[row], fours[row + 4], 0x31));
      }
    }
  }

  // Multiplies every `block` values (a power of two that divides N) by the Hadamard matrix of that
  // size with elements 1 and -1: element (i, j) is -1 where i & j has an odd number of bits
  // (Sylvester's order). Sums are formed in the same order on every target.
  template <int64_t N>
  JACKSCREW_INLINE void hadamard(RowRegisters<float, N>& kept, int64_t block) const {
    constexpr int64_t kVectors = N / kFloats;
    Floats v[kVectors];
    __builtin_memcpy(v, kept.values, sizeof v);
    if (block > 1) within_vectors<1>(v);
    if (block > 2) within_vectors<2>(v);
    if (block > 4) within_vectors<4>(v);
    if constexpr (kFloats > 8) {
      if (block > 8) within_vectors<8>(v);
    }
    if (block > kFloats) between_vectors<1>(v);
    if (block > 2 * kFloats) between_vectors<2>(v);
    if (block > 4 * kFloats) between_vectors<4>(v);
    if constexpr (kVectors > 8) {
      if (block > 8 * kFloats) between_vectors<8>(v);
    }
    __builtin_memcpy(kept.values, v, sizeof v);
  }

  // Calls f(i, random number i), numbered as in sixty_four() from `index` on.
  template <class F>
  JACKSCREW_INLINE void each_random(const RandomStream& stream, uint64_t index, int64_t n,
                                    F f) const {
    for (int64_t done = 0; done < n; done += 64, ++index) {
      const RandomBits64 random = sixty_four(stream, index);
      each(n - done < 64 ? n - done : 64, [&](int64_t i) { f(done + i, random[i]); });
    }
  }

  // Runs f once for the row.
  template <class F>
  JACKSCREW_INLINE void once(F f) const {
    f();
  }

 private:
  template <class F, class... Values>
  JACKSCREW_INLINE static void with_values(const F& f, Values... held) {
    f(held.value...);
    (held.put(), ...);
  }

  // Integers in a vector register.
  static constexpr int kInts = 2 * RandomTeam::kPairs;
  static constexpr int kFloats = kInts;
  typedef float Floats __attribute__((vector_size(4 * kFloats)));

  // One step of a Hadamard transform: replaces x and y, kApart elements apart, by x + y and x - y.
  template <int kApart, int64_t kVectors>
  JACKSCREW_INLINE static void within_vectors(Floats (&v)[kVectors]) {
    const Ints sign = (kIndex & static_cast<uint32_t>(kApart)) << (31 - __builtin_ctz(kApart));
#pragma GCC unroll 16
    for (int64_t i = 0; i < kVectors; ++i) {
      v[i] = exchanged<kApart>(v[i]) + (Floats)((Ints)v[i] ^ sign);
    }
  }
  // Exchanges each element with the one kApart further.
  template <int kApart>
  JACKSCREW_INLINE static Floats exchanged(Floats v) {
    constexpr int kWithinFour = kApart == 1 ? 0xB1 : 0x4E;
#if defined(__AVX512F__)
    if constexpr (kApart < 4) return (Floats)_mm512_maskz_permute_ps(kAll, (__m512)v, kWithinFour);
    constexpr int kFours = kApart == 4 ? 0xB1 : 0x4E;
    return (Floats)_mm512_maskz_shuffle_f32x4(kAll, (__m512)v, (__m512)v, kFours);
#else
    if constexpr (kApart < 4) return (Floats)_mm256_permute_ps((__m256)v, kWithinFour);
    return (Floats)_mm256_permute2f128_ps((__m256)v, (__m256)v, 1);
#endif
  }
  // The same, kApart vectors apart.
  template <int kApart, int64_t kVectors>
  JACKSCREW_INLINE static void between_vectors(Floats (&v)[kVectors]) {
    if constexpr (kApart < kVectors) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < kVectors; ++i) {
        if ((i & kApart) != 0) continue;
        const Floats sum = v[i] + v[i + kApart];
        v[i + kApart] = v[i] - v[i + kApart];
        v[i] = sum;
      }
    }
  }
  typedef uint32_t Ints __attribute__((vector_size(4 * kInts)));
#if defined(__AVX512F__)
  static constexpr Ints kIndex = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
  static constexpr Ints kIndex = {0, 1, 2, 3, 4, 5, 6, 7};
#endif
  // Numbers [at, at + kInts) of a plane of 32 numbers of kBits bits.
  template <int kBits>
  JACKSCREW_INLINE static Ints plane_of(const uint8_t* plane, int at) {
    constexpr int kOfWord = 32 / kBits;
    constexpr Ints kMask = ((1u << kBits) - 1u) - Ints{};
    const auto word = [&](int i) {
      uint32_t bits;
      __builtin_memcpy(&bits, plane + 4 * i, sizeof bits);
      return bits - Ints{};
    };
    const Ints shift = (kIndex * kBits + static_cast<uint32_t>(at * kBits)) & (31u - Ints{});
    const Ints first = word(at / kOfWord);
    if constexpr (kOfWord >= kInts) {
      return first >> shift & kMask;
    } else {
      const Ints second = word(at / kOfWord + 1);
      return (kIndex < static_cast<uint32_t>(kOfWord) - Ints{} ? first : second) >> shift & kMask;
    }
  }

  JACKSCREW_INLINE static __m128i load(const void* from) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
  }
  static constexpr uint16_t kAll = 0xFFFF;  // GCC 12 warns about its own unmasked intrinsics
  JACKSCREW_INLINE static Int32x16 widened(__m128i signed_bytes) {
#if defined(__AVX512F__)
    return joined(_mm512_maskz_cvtepi8_epi32(kAll, signed_bytes));
#else
    return joined(_mm256_cvtepi8_epi32(signed_bytes),
                  _mm256_cvtepi8_epi32(_mm_srli_si128(signed_bytes, 8)));
#endif
  }
  template <class... Parts>
  JACKSCREW_INLINE static Int32x16 joined(Parts... parts) {
    Int32x16 out;
    int32_t* to = out.values;
    ((__builtin_memcpy(to, &parts, sizeof parts), to += sizeof parts / sizeof *to), ...);
    return out;
  }
};

// Runs one row after another, or all at once if the kernel has rows().
template <class Args>
JACKSCREW_INLINE void run_rows(const Args kernel, int64_t begin, int64_t end) {
  if constexpr (requires { kernel.rows(Team{}, begin, end); }) {
    kernel.rows(Team{}, begin, end);
  } else {
    for (int64_t row = begin; row < end; ++row) kernel(Team{}, row);
  }
}

}  // namespace jackscrew::JACKSCREW_ROW_TARGET
