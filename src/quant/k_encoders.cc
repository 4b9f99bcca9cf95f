// Encoders of k-quants: super-blocks of 256, groups of which have a small whole scale each.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/half.h"
#include "quant/k_scales.h"
#include "quant/row_encoders.h"

namespace jackscrew {

namespace {

constexpr int64_t kSuper = 256;  // elements
// Scales are tried so many tenths of a code to either side of the one that just holds the extremes:
// beyond, errors grow again.
constexpr int kTries = 9;

// What an error counts: large numbers move the products more, but no number is free.
template <size_t N>
std::array<double, N> importance(const float* x) {
  double square = 0.0;
  for (size_t i = 0; i < N; ++i) square += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const double mean = std::sqrt(square / static_cast<double>(N));
  std::array<double, N> out;
  for (size_t i = 0; i < N; ++i) out[i] = mean + std::abs(static_cast<double>(x[i]));
  return out;
}

double nearest_code(double value, double least, double most) {
  return std::clamp(std::nearbyint(value), least, most);
}

// The scale with the least error of x [N] ~ scale * q, q in [-half, half - 1].
template <size_t N>
double symmetric_scale(const float* x, double half) {
  const float extreme =
      *std::max_element(x, x + N, [](float a, float b) { return std::abs(a) < std::abs(b); });
  if (extreme == 0.0f) return 0.0;
  const auto weights = importance<N>(x);
  double best_scale = 0.0, best_gain = -1.0;
  for (int step = -kTries; step <= kTries; ++step) {
    const double inverse = -(half + 0.1 * step) / static_cast<double>(extreme);
    double xq = 0.0, qq = 0.0;  // weighted sums: the best scale for these codes is their ratio
    for (size_t i = 0; i < N; ++i) {
      const double value = static_cast<double>(x[i]);
      const double q = nearest_code(value * inverse, -half, half - 1.0);
      xq += weights[i] * value * q;
      qq += weights[i] * q * q;
    }
    if (qq > 0.0 && xq * xq / qq > best_gain) {
      best_gain = xq * xq / qq;
      best_scale = xq / qq;
    }
  }
  return best_scale;
}

struct ScaleAndMinimum {
  double scale = 0.0, minimum = 0.0;  // of x ~ scale * q - minimum; neither is negative
};

// Those with the least error for q in [0, most].
template <size_t N>
ScaleAndMinimum asymmetric_scale(const float* x, double most) {
  const auto [low, high] = std::minmax_element(x, x + N);
  const double least = std::min(0.0, static_cast<double>(*low));
  const double range = std::max(0.0, static_cast<double>(*high)) - least;
  if (range == 0.0) return {};
  const auto weights = importance<N>(x);
  ScaleAndMinimum best{range / most, -least};
  double best_error = std::numeric_limits<double>::infinity();
  for (int step = -kTries; step <= kTries; ++step) {
    const double inverse = (most + 0.1 * step) / range;
    std::array<double, N> codes;
    double w = 0.0, q = 0.0, qq = 0.0, v = 0.0, vq = 0.0;  // weighted sums
    for (size_t i = 0; i < N; ++i) {
      const double value = static_cast<double>(x[i]);
      codes[i] = nearest_code((value - least) * inverse, 0.0, most);
      w += weights[i];
      q += weights[i] * codes[i];
      qq += weights[i] * codes[i] * codes[i];
      v += weights[i] * value;
      vq += weights[i] * value * codes[i];
    }
    const double determinant = w * qq - q * q;
    if (determinant <= 0.0) continue;
    ScaleAndMinimum tried{(w * vq - v * q) / determinant, -(qq * v - q * vq) / determinant};
    if (tried.minimum < 0.0) tried = {qq > 0.0 ? vq / qq : 0.0, 0.0};
    if (tried.scale < 0.0) continue;
    double error = 0.0;
    for (size_t i = 0; i < N; ++i) {
      const double off = tried.scale * codes[i] - tried.minimum - static_cast<double>(x[i]);
      error += weights[i] * off * off;
    }
    if (error < best_error) {
      best_error = error;
      best = tried;
    }
  }
  return best;
}

float put_super_scale(double value, uint8_t* out) {
  const f16 half = to_f16(static_cast<float>(value));
  std::memcpy(out, &half, sizeof half);
  return to_float(half);
}

uint8_t small_scale(double value, float super) {
  return super > 0.0f
             ? static_cast<uint8_t>(nearest_code(value / static_cast<double>(super), 0, 63))
             : uint8_t{0};
}

// The reverse of k_scale() and k_minimum().
void pack_k_scales(const std::array<uint8_t, 8>& scales, const std::array<uint8_t, 8>& minima,
                   uint8_t* packed) {
  for (size_t group = 0; group < 4; ++group) {
    packed[group] = static_cast<uint8_t>(scales[group] | scales[group + 4] >> 4 << 6);
    packed[group + 4] = static_cast<uint8_t>(minima[group] | minima[group + 4] >> 4 << 6);
    packed[group + 8] =
        static_cast<uint8_t>((scales[group + 4] & 15) | (minima[group + 4] & 15) << 4);
  }
}

// Q4_K and Q5_K: codes of 8 groups of 32 with scales and minima, whose fifth bits come first.
template <int Bits>
void encode_grouped(const float* x, int64_t cols, uint8_t* out) {
  constexpr double kMost = (1 << Bits) - 1;
  for (const float* end = x + cols; x < end; x += kSuper) {
    std::array<ScaleAndMinimum, 8> exact;
    double largest = 0.0, deepest = 0.0;
    for (size_t group = 0; group < 8; ++group) {
      exact[group] = asymmetric_scale<32>(x + 32 * group, kMost);
      largest = std::max(largest, exact[group].scale);
      deepest = std::max(deepest, exact[group].minimum);
    }
    const float super = put_super_scale(largest / 63.0, out);
    const float super_minimum = put_super_scale(deepest / 63.0, out + 2);
    std::array<uint8_t, 8> scales, minima;
    for (size_t group = 0; group < 8; ++group) {
      scales[group] = small_scale(exact[group].scale, super);
      minima[group] = small_scale(exact[group].minimum, super_minimum);
    }
    pack_k_scales(scales, minima, out + 4);
    uint8_t* fifths = out + 16;
    uint8_t* nibbles = fifths + (Bits == 5 ? 32 : 0);
    std::memset(fifths, 0, static_cast<size_t>(nibbles - fifths + 128));
    for (size_t i = 0; i < kSuper; ++i) {
      const size_t group = i / 32;
      const double scale = static_cast<double>(super * static_cast<float>(scales[group]));
      const double minimum = static_cast<double>(super_minimum * static_cast<float>(minima[group]));
      const double code =
          scale > 0.0 ? nearest_code((static_cast<double>(x[i]) + minimum) / scale, 0, kMost) : 0.0;
      const auto q = static_cast<uint32_t>(code);
      nibbles[group / 2 * 32 + i % 32] |= static_cast<uint8_t>((q & 15) << group % 2 * 4);
      if (Bits == 5) fifths[i % 32] |= static_cast<uint8_t>(q >> 4 << group);
    }
    out = nibbles + 128;
  }
}

}  // namespace

void encode_q4_k(const float* x, int64_t cols, uint8_t* out) {
  encode_grouped<4>(x, cols, out);
}

void encode_q5_k(const float* x, int64_t cols, uint8_t* out) {
  encode_grouped<5>(x, cols, out);
}

void encode_q6_k(const float* x, int64_t cols, uint8_t* out) {
  for (const float* end = x + cols; x < end; x += kSuper, out += 210) {
    std::array<double, 16> exact;
    double extreme = 0.0;  // the scale furthest from 0
    for (size_t group = 0; group < 16; ++group) {
      exact[group] = symmetric_scale<16>(x + 16 * group, 32.0);
      if (std::abs(exact[group]) > std::abs(extreme)) extreme = exact[group];
    }
    std::memset(out, 0, 192);
    const float super = put_super_scale(extreme / -128.0, out + 208);
    for (size_t i = 0; i < kSuper; ++i) {
      const double small =
          super != 0.0f ? nearest_code(exact[i / 16] / static_cast<double>(super), -128.0, 127.0)
                        : 0.0;
      out[192 + i / 16] = static_cast<uint8_t>(static_cast<int8_t>(small));
      const double scale = static_cast<double>(super) * small;
      const double code =
          scale != 0.0 ? nearest_code(static_cast<double>(x[i]) / scale, -32.0, 31.0) : 0.0;
      const auto q = static_cast<uint32_t>(static_cast<int32_t>(code) + 32);
      // Half h of the block: elements 32 k + j of it have their nibble in byte 32 (k % 2) + j, low
      // or, from k = 2 on, high; their bit pair k is in byte j.
      const size_t half = i / 128, k = i % 128 / 32, j = i % 32;
      out[half * 64 + k % 2 * 32 + j] |= static_cast<uint8_t>((q & 15) << k / 2 * 4);
      out[128 + half * 32 + j] |= static_cast<uint8_t>(q >> 4 << 2 * k);
    }
  }
}

}  // namespace jackscrew
