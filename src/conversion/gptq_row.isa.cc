#include "conversion/gptq_row.h"

namespace jackscrew::JACKSCREW_ISA {

namespace {

// Tried fractions of the range: from all of it down to kLeastShare in equal steps. More steps, or a
// smaller least share, change the error of 4-bit weights by less than a thousandth.
constexpr int kScaleSteps = 24;
constexpr float kLeastShare = 0.55f;

struct Grid {
  float scale;  // rounded to f16
  float zero;
  float last;  // the largest code
};

JACKSCREW_INLINE float smaller(float a, float b) {
  return a < b ? a : b;
}
JACKSCREW_INLINE float larger(float a, float b) {
  return a > b ? a : b;
}
JACKSCREW_INLINE float within(float x, float low, float high) {
  return smaller(larger(x, low), high);
}
// Adding and subtracting 1.5 * 2^23 rounds to nearest, ties to even.
JACKSCREW_INLINE float nearest(float x) {
  return (x + 12582912.0f) - 12582912.0f;
}
JACKSCREW_INLINE float as_half(float x) {
  return to_float(to_f16(x));
}

JACKSCREW_INLINE float code_of(const Grid& grid, float x) {
  const float number = nearest(within(x / grid.scale, -1024.0f, 1024.0f));
  return within(number + grid.zero, 0.0f, grid.last);
}
// The value as readers decode it, rounded to f16. Values beyond f16 are clamped here and refused
// once the matrix is done.
JACKSCREW_INLINE float value_of(const Grid& grid, float code) {
  return as_half(within(grid.scale * (code - grid.zero), -kLargestF16, kLargestF16));
}

JACKSCREW_INLINE float last_code(const GptqColumns& args) {
  return static_cast<float>((1 << args.bits) - 1);
}

// The grid that covers the given share of the range [low, high].
JACKSCREW_INLINE Grid grid_of(const GptqColumns& args, float low, float high, float share) {
  constexpr float kLeastScale = 0x1p-24f;  // the smallest f16 above 0
  Grid grid;
  grid.last = last_code(args);
  const float range = (args.symmetric ? 2.0f * larger(-low, high) : high - low) * share;
  grid.scale = as_half(within(range / grid.last, kLeastScale, kLargestF16));
  // A zero of 0 would be stored as -1, which programs read in different ways.
  grid.zero = args.symmetric ? static_cast<float>(1 << (args.bits - 1))
                             : within(nearest(-low * share / grid.scale), 1.0f, grid.last);
  return grid;
}

// The best grid for w [count] with the costs `cost` [count].
JACKSCREW_INLINE Grid best_grid(const GptqColumns& args, const float* w, const float* cost,
                                int64_t count) {
  float low = 0.0f, high = 0.0f;
#pragma omp simd reduction(min : low) reduction(max : high)
  for (int64_t i = 0; i < count; ++i) {
    low = smaller(low, w[i]);
    high = larger(high, w[i]);
  }
  // With a zero of at least 1, the range begins a code below 0.
  low = smaller(low, -high / (last_code(args) - 1.0f));
  Grid best = {};
  float least = 0.0f;
  for (int step = 0; step < kScaleSteps; ++step) {
    const float share = 1.0f - (1.0f - kLeastShare) * static_cast<float>(step) /
                                   static_cast<float>(kScaleSteps - 1);
    const Grid grid = grid_of(args, low, high, share);
    float error = 0.0f;
#pragma omp simd reduction(+ : error)
    for (int64_t i = 0; i < count; ++i) {
      const float miss = w[i] - grid.scale * (code_of(grid, w[i]) - grid.zero);
      error += cost[i] * miss * miss;
    }
    if (step == 0 || error < least) {
      best = grid;
      least = error;
    }
  }
  return best;
}

void round_row(const GptqColumns& args, int64_t row) {
  float* w = args.w + row * args.cols;
  uint8_t* codes = args.codes + row * args.cols;
  uint8_t* zeros = args.zeros + row * args.groups;
  f16* scales = args.scales + row * args.groups;
  float* errors = args.errors + row * kGptqColumns;
  Grid grid = {};
  if (args.begin % args.group_size != 0) {
    const int64_t group = args.begin / args.group_size;
    grid = {to_float(scales[group]), static_cast<float>(zeros[group]), last_code(args)};
  }
  for (int64_t k = args.begin; k < args.end; ++k) {
    if (k % args.group_size == 0) {
      const int64_t left = args.cols - k;
      grid = best_grid(args, w + k, args.cost + k, args.group_size < left ? args.group_size : left);
      scales[k / args.group_size] = to_f16(grid.scale);
      zeros[k / args.group_size] = static_cast<uint8_t>(grid.zero);
    }
    const float code = code_of(grid, w[k]);
    const float value = value_of(grid, code);
    codes[k] = static_cast<uint8_t>(code);
    if (args.u != nullptr) {
      const float* beside = args.u + k * args.cols;
      const float error = (value - w[k]) / beside[k];
#pragma omp simd
      for (int64_t j = k + 1; j < args.end; ++j) w[j] += error * beside[j];
      errors[k - args.begin] = error;
    }
    w[k] = value;
  }
}

}  // namespace

extern const GptqRowKernel kRoundGptqRow = round_row;

}  // namespace jackscrew::JACKSCREW_ISA
