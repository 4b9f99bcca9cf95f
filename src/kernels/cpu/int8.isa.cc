#include "kernels/cpu/int8.h"

#include <immintrin.h>

#include "base/inline.h"
#include "kernels/int8_group.h"

namespace jackscrew::JACKSCREW_ISA {

namespace {

#if defined(__AVX512F__)
constexpr Int8Tile kTile = kInt8TileV4;
constexpr int64_t kLanes = 16;
#else
constexpr Int8Tile kTile = kInt8TileV3;
constexpr int64_t kLanes = 8;
#endif
typedef int32_t Words __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef float Floats __attribute__((vector_size(kLanes * 4), aligned(4)));

JACKSCREW_INLINE Words load(const void* from) {
  return *static_cast<const Words*>(from);
}

constexpr int64_t kRows = kTile.rows;
constexpr int64_t kColumns = kTile.columns;
constexpr int64_t kVectors = kColumns / kLanes;
constexpr int64_t kGroupWords = kInt8Group / 4;
constexpr int64_t kStepWords = kInt8Step / 4;

// Adds to each sum the products of four unsigned bytes of a and four signed ones of b.
struct Pairs {
  static constexpr int32_t kShift = 64;
  JACKSCREW_INLINE static void add(Words& sum, Words a, Words b) {
#if defined(__AVX512F__)
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)a, (__m512i)b);
    sum += (Words)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#else
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)a, (__m256i)b);
    sum += (Words)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
    asm("" : "+v"(sum));  // or GCC adds several products first and runs out of registers
  }
};
#if defined(__AVX512F__)
struct Vnni {
  static constexpr int32_t kShift = 128;
  // The intrinsic makes GCC 12 copy every sum once per product, at a quarter of the speed.
  JACKSCREW_INLINE static void add(Words& sum, Words a, Words b) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  }
};
#endif

JACKSCREW_INLINE Words broadcast(const uint8_t* four) {
  int32_t value;
  __builtin_memcpy(&value, four, sizeof value);
  return value - Words{};
}

// out [kRows, kColumns] += the scaled sums of every group.
template <class Dot>
JACKSCREW_INLINE void add_groups(const Int8Product& args, float* out) {
  // Rows and columns beyond c repeat the last one, and are not written.
  const uint8_t* a[kRows];
  const float* scales[kRows];
#pragma GCC unroll 8
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t row = r < args.rows ? r : args.rows - 1;
    a[r] = args.a + row * args.a_stride;
    scales[r] = args.a_scales + row * args.a_scales_stride;
  }
  const uint32_t* b = args.b;
  const int64_t words = (args.depth + kInt8Step - 1) / kInt8Step * kStepWords;
  for (int64_t begin = 0, group = 0; begin < words; begin += kGroupWords, ++group) {
    const int64_t end = begin + kGroupWords < words ? begin + kGroupWords : words;
    asm volatile("" ::: "memory");  // or GCC keeps `out` in registers and runs out of them
    Words sums[kRows][kVectors];
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int64_t v = 0; v < kVectors; ++v) {
        sums[r][v] = load(args.sums + group * kColumns + v * kLanes);
      }
    }
    for (int64_t at = begin; at < end; at += kStepWords) {
#pragma GCC unroll 4
      for (int64_t w = 0; w < kStepWords; ++w) {
        Words columns[kVectors];
#pragma GCC unroll 8
        for (int64_t v = 0; v < kVectors; ++v) columns[v] = load(b + w * kColumns + v * kLanes);
#pragma GCC unroll 8
        for (int64_t r = 0; r < kRows; ++r) {
          const Words row = broadcast(a[r] + (at + w) * 4);
#pragma GCC unroll 8
          for (int64_t v = 0; v < kVectors; ++v) Dot::add(sums[r][v], row, columns[v]);
        }
      }
      b += kStepWords * kColumns;
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int64_t v = 0; v < kVectors; ++v) {
        auto& to = *reinterpret_cast<Floats*>(out + r * kColumns + v * kLanes);
        to += scales[r][group] * __builtin_convertvector(sums[r][v], Floats);
      }
    }
  }
}

void write(const Int8Product& args, const float* out) {
  for (int64_t r = 0; r < args.rows; ++r) {
    float* c = args.c + r * args.c_stride;
    for (int64_t j = 0; j < args.columns; ++j) {
      const float scale = args.b_scales != nullptr ? args.b_scales[j] : 1.0f;
      c[j] = __builtin_fmaf(scale, out[r * kColumns + j], args.accumulate ? c[j] : 0.0f);
    }
  }
}

// Transposes four rows of sixteen bytes into four rows of four words, kColumns apart.
JACKSCREW_INLINE void transpose(const int8_t* const* rows, int64_t at, uint32_t* to) {
  const auto row = [&](int r) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + at));
  };
  const __m128i low01 = _mm_unpacklo_epi32(row(0), row(1));
  const __m128i high01 = _mm_unpackhi_epi32(row(0), row(1));
  const __m128i low23 = _mm_unpacklo_epi32(row(2), row(3));
  const __m128i high23 = _mm_unpackhi_epi32(row(2), row(3));
  const auto put = [&](int w, __m128i value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + w * kColumns), value);
  };
  put(0, _mm_unpacklo_epi64(low01, low23));
  put(1, _mm_unpackhi_epi64(low01, low23));
  put(2, _mm_unpacklo_epi64(high01, high23));
  put(3, _mm_unpackhi_epi64(high01, high23));
}

// Interleaves four rows of sixteen bytes: the four bytes of a column become a word.
JACKSCREW_INLINE void interleave(const int8_t* const* rows, int64_t at, uint32_t* to) {
  const auto row = [&](int r) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + at));
  };
  const __m128i low01 = _mm_unpacklo_epi8(row(0), row(1));
  const __m128i high01 = _mm_unpackhi_epi8(row(0), row(1));
  const __m128i low23 = _mm_unpacklo_epi8(row(2), row(3));
  const __m128i high23 = _mm_unpackhi_epi8(row(2), row(3));
  const auto put = [&](int w, __m128i value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at + w * 4), value);
  };
  put(0, _mm_unpacklo_epi16(low01, low23));
  put(1, _mm_unpackhi_epi16(low01, low23));
  put(2, _mm_unpacklo_epi16(high01, high23));
  put(3, _mm_unpackhi_epi16(high01, high23));
}

// Packs b [columns, depth]. Sixteen columns at a time fill whole cache lines.
JACKSCREW_INLINE void pack_rows(const int8_t* b, int64_t stride, int64_t columns, int64_t depth,
                                uint32_t* packed) {
  const int64_t whole = depth / kInt8Step * kInt8Step;
  for (int64_t j = 0; j < kColumns; j += 16) {
    const int8_t* rows[16];
    for (int64_t r = 0; r < 16; ++r) {
      rows[r] = b + (j + r < columns ? j + r : columns - 1) * stride;
    }
    for (int64_t k = 0; k < whole; k += kInt8Step) {
      for (int64_t r = 0; r < 16; r += 4) transpose(rows + r, k, packed + k / 4 * kColumns + j + r);
    }
    if (whole == depth) continue;
    int8_t rest[16][kInt8Step] = {};
    for (int64_t r = 0; r < 16; ++r) {
      for (int64_t k = whole; k < depth; ++k) rest[r][k - whole] = rows[r][k];
      rows[r] = rest[r];
    }
    for (int64_t r = 0; r < 16; r += 4)
      transpose(rows + r, 0, packed + whole / 4 * kColumns + j + r);
  }
}

// Packs b [depth, columns].
JACKSCREW_INLINE void pack_columns(const int8_t* b, int64_t stride, int64_t columns, int64_t depth,
                                   uint32_t* packed) {
  const int64_t padded = (depth + kInt8Step - 1) / kInt8Step * kInt8Step;
  int8_t edge[4][kColumns] = {};
  for (int64_t k = 0; k < padded; k += 4) {
    const bool whole = columns == kColumns && k + 4 <= depth;
    const int8_t* rows[4];
    for (int64_t r = 0; r < 4; ++r) {
      rows[r] = whole ? b + (k + r) * stride : edge[r];
      if (whole) continue;
      for (int64_t j = 0; j < columns; ++j)
        edge[r][j] = k + r < depth ? b[(k + r) * stride + j] : 0;
    }
    for (int64_t j = 0; j < kColumns; j += 16) interleave(rows, j, packed + k / 4 * kColumns);
  }
}

template <class Dot>
JACKSCREW_INLINE void pack(const int8_t* b, int64_t stride, bool transposed, int64_t columns,
                           int64_t depth, uint32_t* packed, int32_t* sums) {
  if (transposed) {
    pack_rows(b, stride, columns, depth, packed);
  } else {
    pack_columns(b, stride, columns, depth, packed);
  }
  const Words ones = 0x01010101 - Words{};
  const int64_t words = (depth + kInt8Step - 1) / kInt8Step * kStepWords;
  for (int64_t begin = 0; begin < words; begin += kGroupWords, sums += kColumns) {
    const int64_t end = begin + kGroupWords < words ? begin + kGroupWords : words;
    for (int64_t v = 0; v < kVectors; ++v) {
      Words sum{};
      for (int64_t w = begin; w < end; ++w) {
        Dot::add(sum, ones, load(packed + w * kColumns + v * kLanes));
      }
      *reinterpret_cast<Words*>(sums + v * kLanes) = sum * -Dot::kShift;
    }
  }
}

__attribute__((noinline)) void add_groups_pairs(const Int8Product& args, float* out) {
  add_groups<Pairs>(args, out);
}
void multiply_pairs(const Int8Product& args) {
  alignas(64) float out[kRows * kColumns] = {};
  add_groups_pairs(args, out);
  write(args, out);
}
void pack_pairs(const int8_t* b, int64_t stride, bool transposed, int64_t columns, int64_t depth,
                uint32_t* packed, int32_t* sums) {
  pack<Pairs>(b, stride, transposed, columns, depth, packed, sums);
}

#if defined(__AVX512F__)
__attribute__((noinline, target("avx512vnni"))) void add_groups_vnni(const Int8Product& args,
                                                                     float* out) {
  add_groups<Vnni>(args, out);
}
void multiply_vnni(const Int8Product& args) {
  alignas(64) float out[kRows * kColumns] = {};
  add_groups_vnni(args, out);
  write(args, out);
}
__attribute__((target("avx512vnni"))) void pack_vnni(const int8_t* b, int64_t stride,
                                                     bool transposed, int64_t columns,
                                                     int64_t depth, uint32_t* packed,
                                                     int32_t* sums) {
  pack<Vnni>(b, stride, transposed, columns, depth, packed, sums);
}
#endif

}  // namespace

extern const Int8Kernels kInt8Kernels;
const Int8Kernels kInt8Kernels{pack_pairs, multiply_pairs};
#if defined(__AVX512F__)
extern const Int8Kernels kInt8VnniKernels;
const Int8Kernels kInt8VnniKernels{pack_vnni, multiply_vnni};
#endif

}  // namespace jackscrew::JACKSCREW_ISA
