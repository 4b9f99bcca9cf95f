// Encoders of k-quants: super-blocks of 256 elements, in groups with a small integer scale each.
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
// Candidate scales lie up to this many tenths of a code to either side of the one that just holds
// the extremes: beyond, errors grow again.
constexpr int kTries = 9;

// The weight of each element's squared error: large elements move the products more, but none is
// free.
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

// Writes the f16 of which `most` units come to `extreme`, and returns it. Where f16 is subnormal it
// may round towards 0 by more than half a unit of the extreme: the next f16 is taken then, so that
// no group's scale lies beyond the integers.
float write_unit(double extreme, double most, uint8_t* out) {
  const float nearest = write_f16_scale(extreme / most, out);
  if (std::abs(static_cast<double>(nearest)) * (most + 0.5) >= std::abs(extreme)) return nearest;
  uint16_t bits = 0;
  std::memcpy(&bits, out, sizeof bits);
  ++bits;  // of either sign
  std::memcpy(out, &bits, sizeof bits);
  return to_float(f16{bits});
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

// The scale and minimum with the least weighted error for q in [0, most].
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

// The integer scale and minimum of a group, and the values that they stand for.
struct SmallPair {
  int32_t scale = 0, minimum = 0;
  double exact_scale = 0.0, exact_minimum = 0.0;

  double code(double value, double most) const {
    return exact_scale > 0.0 ? nearest_code((value + exact_minimum) / exact_scale, 0.0, most) : 0.0;
  }
};

// The pair with the least error among the integers next to the exact scale and minimum: with few
// bits for scales, the nearest of each need not be the best pair.
template <size_t N>
SmallPair best_small_pair(const float* x, const ScaleAndMinimum& exact, float super,
                          float super_minimum, int32_t most_small, double most_code) {
  const auto whole = [&](double value, float unit) {
    return unit > 0.0f ? static_cast<int32_t>(value / static_cast<double>(unit)) : 0;
  };
  const auto weights = importance<N>(x);
  const int32_t scale = whole(exact.scale, super), minimum = whole(exact.minimum, super_minimum);
  SmallPair best;
  double best_error = std::numeric_limits<double>::infinity();
  for (int32_t s = std::max(0, scale - 1); s <= std::min(most_small, scale + 2); ++s) {
    for (int32_t m = std::max(0, minimum - 1); m <= std::min(most_small, minimum + 2); ++m) {
      const SmallPair tried{s, m, static_cast<double>(super) * s,
                            static_cast<double>(super_minimum) * m};
      double error = 0.0;
      for (size_t i = 0; i < N; ++i) {
        const double value = static_cast<double>(x[i]);
        const double off =
            tried.exact_scale * tried.code(value, most_code) - tried.exact_minimum - value;
        error += weights[i] * off * off;
      }
      if (error < best_error) {
        best_error = error;
        best = tried;
      }
    }
  }
  return best;
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

// Q4_K and Q5_K: 8 groups of 32 codes with scales and minima; fifth bits come before the nibbles.
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
    const float super = write_unit(largest, 63.0, out);
    const float super_minimum = write_unit(deepest, 63.0, out + 2);
    std::array<SmallPair, 8> pairs;
    std::array<uint8_t, 8> scales, minima;
    for (size_t group = 0; group < 8; ++group) {
      pairs[group] =
          best_small_pair<32>(x + 32 * group, exact[group], super, super_minimum, 63, kMost);
      scales[group] = static_cast<uint8_t>(pairs[group].scale);
      minima[group] = static_cast<uint8_t>(pairs[group].minimum);
    }
    pack_k_scales(scales, minima, out + 4);
    uint8_t* fifths = out + 16;
    uint8_t* nibbles = fifths + (Bits == 5 ? 32 : 0);
    std::memset(fifths, 0, static_cast<size_t>(nibbles - fifths + 128));
    for (size_t i = 0; i < kSuper; ++i) {
      const size_t group = i / 32;
      const auto q = static_cast<uint32_t>(pairs[group].code(static_cast<double>(x[i]), kMost));
      nibbles[group / 2 * 32 + i % 32] |= static_cast<uint8_t>((q & 15) << group % 2 * 4);
      if (Bits == 5) fifths[i % 32] |= static_cast<uint8_t>(q >> 4 << group);
    }
    out = nibbles + 128;
  }
}

// 16 groups of 16 with signed integer scales and one super-scale: x ~ super * scale * (code -
// half_code), with scales in [-half_scale, half_scale - 1].
struct SymmetricBlock {
  std::array<int32_t, 16> scales;
  std::array<uint32_t, kSuper> codes;

  // Writes the super-scale, f16, to `super_out`.
  SymmetricBlock(const float* x, double half_code, double half_scale, uint8_t* super_out) {
    std::array<double, 16> exact;
    double extreme = 0.0;  // the scale furthest from 0
    for (size_t group = 0; group < 16; ++group) {
      exact[group] = symmetric_scale<16>(x + 16 * group, half_code);
      if (std::abs(exact[group]) > std::abs(extreme)) extreme = exact[group];
    }
    const float super = write_unit(-extreme, half_scale, super_out);
    for (size_t group = 0; group < 16; ++group) {
      const double small = super != 0.0f ? nearest_code(exact[group] / static_cast<double>(super),
                                                        -half_scale, half_scale - 1.0)
                                         : 0.0;
      scales[group] = static_cast<int32_t>(small);
    }
    for (size_t i = 0; i < kSuper; ++i) {
      const double scale = static_cast<double>(super) * scales[i / 16];
      const double code = scale != 0.0 ? nearest_code(static_cast<double>(x[i]) / scale, -half_code,
                                                      half_code - 1.0)
                                       : 0.0;
      codes[i] = static_cast<uint32_t>(static_cast<int32_t>(code + half_code));
    }
  }
};

}  // namespace

void encode_q4_k(const float* x, int64_t cols, uint8_t* out) {
  encode_grouped<4>(x, cols, out);
}

void encode_q5_k(const float* x, int64_t cols, uint8_t* out) {
  encode_grouped<5>(x, cols, out);
}

void encode_q6_k(const float* x, int64_t cols, uint8_t* out) {
  for (const float* end = x + cols; x < end; x += kSuper, out += 210) {
    const SymmetricBlock block(x, 32.0, 128.0, out + 208);
    std::memset(out, 0, 192);
    for (size_t group = 0; group < 16; ++group) {
      out[192 + group] = static_cast<uint8_t>(static_cast<int8_t>(block.scales[group]));
    }
    for (size_t i = 0; i < kSuper; ++i) {
      const uint32_t q = block.codes[i];
      // In each half of the block, element 32 k + j has its nibble in byte 32 (k % 2) + j, low or,
      // from k = 2 on, high, and its high two bits as bit pair k of byte j.
      const size_t half = i / 128, k = i % 128 / 32, j = i % 32;
      out[half * 64 + k % 2 * 32 + j] |= static_cast<uint8_t>((q & 15) << k / 2 * 4);
      out[128 + half * 32 + j] |= static_cast<uint8_t>(q >> 4 << 2 * k);
    }
  }
}

void encode_q3_k(const float* x, int64_t cols, uint8_t* out) {
  for (const float* end = x + cols; x < end; x += kSuper, out += 110) {
    const SymmetricBlock block(x, 4.0, 32.0, out + 108);
    std::memset(out, 0, 108);
    for (size_t group = 0; group < 16; ++group) {
      // As q3_k_scale() in quant/q3_k.rows.h reads them.
      const auto scale = static_cast<uint32_t>(block.scales[group] + 32);
      out[96 + group % 8] |= static_cast<uint8_t>((scale & 15) << group / 8 * 4);
      out[104 + group % 4] |= static_cast<uint8_t>(scale >> 4 << group / 4 * 2);
    }
    for (size_t i = 0; i < kSuper; ++i) {
      const uint32_t q = block.codes[i];
      out[i % 32] |= static_cast<uint8_t>(q >> 2 << i / 32);
      out[32 + i / 128 * 32 + i % 32] |= static_cast<uint8_t>((q & 3) << i % 128 / 32 * 2);
    }
  }
}

void encode_q2_k(const float* x, int64_t cols, uint8_t* out) {
  for (const float* end = x + cols; x < end; x += kSuper, out += 84) {
    std::array<ScaleAndMinimum, 16> exact;
    double largest = 0.0, deepest = 0.0;
    for (size_t group = 0; group < 16; ++group) {
      exact[group] = asymmetric_scale<16>(x + 16 * group, 3.0);
      largest = std::max(largest, exact[group].scale);
      deepest = std::max(deepest, exact[group].minimum);
    }
    const float super = write_unit(largest, 15.0, out + 80);
    const float super_minimum = write_unit(deepest, 15.0, out + 82);
    std::memset(out, 0, 80);
    for (size_t group = 0; group < 16; ++group) {
      const SmallPair pair =
          best_small_pair<16>(x + 16 * group, exact[group], super, super_minimum, 15, 3.0);
      out[group] = static_cast<uint8_t>(pair.scale | pair.minimum << 4);
      for (size_t i = 16 * group; i < 16 * group + 16; ++i) {
        const auto q = static_cast<uint32_t>(pair.code(static_cast<double>(x[i]), 3.0));
        out[16 + i / 128 * 32 + i % 32] |= static_cast<uint8_t>(q << i % 128 / 32 * 2);
      }
    }
  }
}

}  // namespace jackscrew
