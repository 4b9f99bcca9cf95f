#include "conversion/exl2_tile.h"

#include <immintrin.h>

#include "base/half.h"

namespace jackscrew::JACKSCREW_ISA {

namespace {

#if defined(__AVX512F__)
constexpr int kTileRows = 16;
#else
constexpr int kTileRows = 8;
#endif
static_assert(kTileRows >= kLeastTileRows);

// One number per row.
typedef float Lanes __attribute__((vector_size(kTileRows * 4)));
typedef int32_t Whole __attribute__((vector_size(kTileRows * 4)));

// Columns of a tile, transposed.
struct Columns {
  Lanes at[kTileColumns];
};

JACKSCREW_INLINE Lanes all(float value) {
  return value - Lanes{};
}
JACKSCREW_INLINE Lanes smaller(Lanes a, Lanes b) {
  return a < b ? a : b;
}
JACKSCREW_INLINE Lanes larger(Lanes a, Lanes b) {
  return a > b ? a : b;
}

// Rounds to f16 and back.
JACKSCREW_INLINE Lanes as_half(Lanes value) {
  __m256 parts[kTileRows / 8];
  __builtin_memcpy(parts, &value, sizeof value);
  for (__m256& part : parts) {
    part = _mm256_cvtph_ps(_mm256_cvtps_ph(part, _MM_FROUND_TO_NEAREST_INT));
  }
  __builtin_memcpy(&value, parts, sizeof value);
  return value;
}

// Adding and subtracting 1.5 * 2^23 rounds to nearest, ties to even.
JACKSCREW_INLINE Lanes nearest(Lanes x) {
  return (x + 12582912.0f) - 12582912.0f;
}
JACKSCREW_INLINE Lanes number_of(Lanes x, Lanes inverse, float lowest) {
  return nearest(smaller(larger(x * inverse, all(lowest)), all(-1.0f - lowest)));
}

// The scale as readers decode it. `codes` are scale codes, whole numbers.
JACKSCREW_INLINE Lanes scale_of(Lanes codes, float scale_max_256th) {
  const Lanes root = codes + 1.0f;
  return as_half(root * root * scale_max_256th);
}

JACKSCREW_INLINE int64_t rows_of(const Exl2Tile& args, int64_t tile) {
  const int64_t left = args.rows - tile * kTileRows;
  return left < kTileRows ? left : kTileRows;
}

// Loads columns [first, end) of a tile's rows; rows beyond the matrix are 0.
JACKSCREW_INLINE void load(const Exl2Tile& args, int64_t tile, int64_t end, Columns& columns) {
  const int64_t rows = rows_of(args, tile), count = end - args.first;
  auto* to = reinterpret_cast<float*>(columns.at);
  if (rows < kTileRows) __builtin_memset(columns.at, 0, sizeof columns.at);
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = args.w + (tile * kTileRows + row) * args.cols + args.first;
    for (int64_t k = 0; k < count; ++k) to[k * kTileRows + row] = from[k];
  }
}

void find_row_absmax(const Exl2Tile& args, int64_t tile) {
  for (int64_t row = 0; row < rows_of(args, tile); ++row) {
    const float* from = args.w + (tile * kTileRows + row) * args.cols + args.first;
    float most = 0.0f;
#pragma omp simd reduction(max : most)
    for (int64_t k = 0; k < args.count; ++k) {
      const float size = __builtin_fabsf(from[k]);
      most = size > most ? size : most;
    }
    args.row_absmax[tile * kTileRows + row] = most;
  }
}

// The cost of each row with its scale.
JACKSCREW_INLINE Lanes cost_of(const Exl2Tile& args, const Columns& columns, Lanes scale) {
  const Lanes inverse = 1.0f / scale;
  Lanes sum = {};
  for (int64_t k = 0; k < args.count; ++k) {
    const Lanes x = columns.at[k];
    const Lanes miss = x - scale * number_of(x, inverse, args.lowest);
    sum += args.cost[args.first + k] * miss * miss;
  }
  return sum;
}

// Chooses for each row the scale code of least cost among the code that just reaches the row's
// largest value and those below it. Five steps below 16, a scale is less than half of what reaches
// the largest value; clipping that much pays with 2 and 3 bits, and not with more.
JACKSCREW_INLINE Lanes best_codes(const Exl2Tile& args, const Columns& columns, Lanes absmax,
                                  float scale_max_256th, Lanes& costs) {
  const int tried = args.lowest < -4.0f ? 4 : 6;
  Lanes root = absmax / ((-0.5f - args.lowest) * scale_max_256th);
  for (int i = 0; i < kTileRows; ++i) root[i] = __builtin_ceilf(__builtin_sqrtf(root[i]));
  const Lanes top = smaller(root, all(16.0f)) - 1.0f;
  Lanes best = {};
  for (int step = 0; step < tried; ++step) {
    const Lanes codes = larger(top - static_cast<float>(step), Lanes{});
    const Lanes of = cost_of(args, columns, scale_of(codes, scale_max_256th));
    const Whole better = step == 0 ? Whole{} == Whole{} : of < costs;
    best = better ? codes : best;
    costs = better ? of : costs;
  }
  return best;
}

void try_scales(const Exl2Tile& args, int64_t tile) {
  Columns columns;
  load(args, tile, args.first + args.count, columns);
  const int64_t rows = rows_of(args, tile);
  Lanes absmax = {};
  for (int64_t row = 0; row < rows; ++row) absmax[row] = args.row_absmax[tile * kTileRows + row];
  for (int64_t t = 0; t < kTriedScales; ++t) {
    Lanes costs = {};
    const Lanes best = best_codes(args, columns, absmax, args.scale_max_256th[t], costs);
    double sum = 0.0;
    for (int64_t row = 0; row < rows; ++row) {
      args.tried_codes[(tile * kTileRows + row) * kTriedScales + t] =
          static_cast<uint8_t>(best[row]);
      sum += static_cast<double>(costs[row]);
    }
    args.tried_costs[tile * kTriedScales + t] = sum;
  }
}

// Writes a tile's values, errors and codes from column order back to its rows.
JACKSCREW_INLINE void store(const Exl2Tile& args, int64_t tile, const Columns& columns,
                            const Columns& errors, const Columns& numbers) {
  const auto* values = reinterpret_cast<const float*>(columns.at);
  const auto* error = reinterpret_cast<const float*>(errors.at);
  const auto* number = reinterpret_cast<const float*>(numbers.at);
  for (int64_t i = 0; i < rows_of(args, tile); ++i) {
    const int64_t row = tile * kTileRows + i;
    float* w = args.w + row * args.cols + args.first;
    float* e = args.errors + row * kTileColumns + args.first - args.begin;
    uint8_t* codes = args.codes + row * args.cols + args.first;
    for (int64_t k = 0; k < args.end - args.first; ++k) w[k] = values[k * kTileRows + i];
    for (int64_t k = 0; k < args.count; ++k) {
      e[k] = error[k * kTileRows + i];
      codes[k] = static_cast<uint8_t>(static_cast<int32_t>(number[k * kTileRows + i]));
    }
  }
}

void round(const Exl2Tile& args, int64_t tile) {
  Columns columns, errors, numbers;
  load(args, tile, args.end, columns);
  const int64_t rows = rows_of(args, tile), behind = args.end - args.first;
  Lanes codes = {};
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = tile * kTileRows + i;
    args.scale_codes[row] = args.tried_codes[row * kTriedScales + args.chosen];
    codes[i] = static_cast<float>(args.scale_codes[row]);
  }
  const Lanes scale = scale_of(codes, args.scale_max_256th[args.chosen]);
  const Lanes inverse = 1.0f / scale;
  Lanes sum = {};
  for (int64_t k = 0; k < args.count; ++k) {
    const float* beside = args.u + (args.first + k) * args.cols + args.first;
    const Lanes number = number_of(columns.at[k], inverse, args.lowest);
    const Lanes value = as_half(number * scale);
    const Lanes error = (value - columns.at[k]) * (1.0f / beside[k]);
    for (int64_t j = k + 1; j < behind; ++j) columns.at[j] += error * beside[j];
    columns.at[k] = value;
    errors.at[k] = error;
    numbers.at[k] = number - args.lowest;
    sum += error * error;
  }
  store(args, tile, columns, errors, numbers);
  Lanes most = {};
  for (int64_t k = args.count; k < args.count + args.next_count; ++k) {
    most = larger(most, larger(columns.at[k], -columns.at[k]));
  }
  for (int64_t i = 0; i < rows; ++i) {
    args.sums[tile * kTileRows + i] += static_cast<double>(sum[i]);
    args.row_absmax[tile * kTileRows + i] = most[i];
  }
}

}  // namespace

extern const Exl2Kernels kExl2Kernels = {kTileRows, find_row_absmax, try_scales, round};

}  // namespace jackscrew::JACKSCREW_ISA
