#include "kernels/cpu/dot.h"

#include <immintrin.h>

namespace jackscrew::JACKSCREW_ISA {

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

typedef float Vector __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2), aligned(2)));

JACKSCREW_INLINE Vector load(const float* from) {
  return *reinterpret_cast<const Vector*>(from);
}

JACKSCREW_INLINE Vector load(const bf16* from) {
  const Halves bits = *reinterpret_cast<const Halves*>(from);
  return reinterpret_cast<Vector>(__builtin_convertvector(bits, Words) << 16);
}

// Sum of the lanes, by halves.
JACKSCREW_INLINE float lane_sum(Vector value) {
  __m256 parts[kLanes / 8];
  __builtin_memcpy(parts, &value, sizeof value);
#if defined(__AVX512F__)
  parts[0] = _mm256_add_ps(parts[0], parts[1]);
#endif
  const __m128 four =
      _mm_add_ps(_mm256_castps256_ps128(parts[0]), _mm256_extractf128_ps(parts[0], 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Sums of one row of b with M rows of a. Each keeps S partial sums, which hide the latency of a
// multiply-add: M x S accumulators fit the registers of either instruction set.
template <int M, int S, typename T>
JACKSCREW_INLINE void dot_column(const float* a, const T* b, int64_t depth, float* totals) {
  Vector sum[M][S] = {};
  int64_t k = 0;
  for (; k + S * kLanes <= depth; k += S * kLanes) {
    for (int s = 0; s < S; ++s) {
      const Vector row = load(b + k + s * kLanes);
      for (int i = 0; i < M; ++i) sum[i][s] += load(a + (k + s * kLanes) * M + i * kLanes) * row;
    }
  }
  for (; k + kLanes <= depth; k += kLanes) {
    const Vector row = load(b + k);
    for (int i = 0; i < M; ++i) sum[i][0] += load(a + k * M + i * kLanes) * row;
  }
  for (int i = 0; i < M; ++i) {
    for (int s = 1; s < S; ++s) sum[i][0] += sum[i][s];
    totals[i] = lane_sum(sum[i][0]);
    for (int64_t rest = k; rest < depth; ++rest) {
      totals[i] += a[k * M + i * kLanes + rest - k] * to_float(b[rest]);
    }
  }
}

// One row of b after the other: prefetchers follow one stream nearly twice as fast as four.
template <int M, typename T>
void dot_rows(const DotProduct<T>& args, int64_t begin, int64_t end) {
  constexpr int kSums = M == 1 ? 4 : 2;
  constexpr int64_t kDepth = kDotElements / M / kLanes * kLanes;
  // The rows of a, interleaved by vectors: one stream, and no rows a power of two apart in the
  // cache.
  alignas(64) float a[M * kDepth];
  for (int64_t k0 = 0; k0 < args.k; k0 += kDepth) {
    const int64_t depth = args.k - k0 < kDepth ? args.k - k0 : kDepth;
    for (int i = 0; i < M; ++i) {
      const T* from = args.a + i * args.a_stride + k0;
      for (int64_t k = 0; k < depth; ++k) {
        a[k / kLanes * kLanes * M + i * kLanes + k % kLanes] = to_float(from[k]);
      }
    }
    const bool add = args.accumulate || k0 > 0;
    for (int64_t column = begin; column < end; ++column) {
      float totals[M];
      dot_column<M, kSums>(a, args.b + column * args.b_stride + k0, depth, totals);
      for (int i = 0; i < M; ++i) {
        float& to = args.c[i * args.c_stride + column];
        to = add ? to + totals[i] : totals[i];
      }
    }
  }
}

template <typename T>
void dot(const DotProduct<T>& args, int64_t begin, int64_t end) {
  static_assert(kDotRows == 4);
  switch (args.m) {
    case 1:
      return dot_rows<1>(args, begin, end);
    case 2:
      return dot_rows<2>(args, begin, end);
    case 3:
      return dot_rows<3>(args, begin, end);
    default:
      return dot_rows<4>(args, begin, end);
  }
}

}  // namespace

extern const DotKernels kDotKernels;
const DotKernels kDotKernels{dot<float>, dot<bf16>};

}  // namespace jackscrew::JACKSCREW_ISA
