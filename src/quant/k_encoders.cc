// Encoders of k-quants: super-blocks of 256 elements, in groups with a small integer scale each.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "quant/block_encoder.h"
#include "quant/gguf_formats.h"
#include "quant/k_scales.h"

namespace jackscrew {

namespace {

constexpr size_t kSuper = 256;  // elements

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
SmallPair best_small_pair(const float* x, const double* weights, const ScaleAndMinimum& exact,
                          float super, float super_minimum, int32_t most_small, double most_code) {
  const auto whole = [&](double value, float unit) {
    if (unit <= 0.0f) return 0;
    return static_cast<int32_t>(clamped(value / static_cast<double>(unit), 0.0, most_small));
  };
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

// Groups with scales and minima: x ~ super * scale * code - super_minimum * minimum.
template <size_t Group, int Bits, int32_t MostSmall>
struct PairedEncoder {
  static constexpr size_t kColumns = kSuper, kGroup = Group;
  static constexpr size_t kGroups = kColumns / kGroup;
  static constexpr double kMost = (1 << Bits) - 1;

  std::array<ScaleAndMinimum, kGroups> exact;
  std::array<SmallPair, kGroups> pairs;
  f16 super, super_minimum;

  void fit(size_t group, const float* x, const double* weights) {
    exact[group] = asymmetric_scale<kGroup>(x, weights, kMost);
  }
  void set_scales() {
    double largest = 0.0, deepest = 0.0;
    for (const ScaleAndMinimum& pair : exact) {
      largest = std::max(largest, pair.scale);
      deepest = std::max(deepest, pair.minimum);
    }
    super = unit_of(largest, MostSmall);
    super_minimum = unit_of(deepest, MostSmall);
  }
  void settle(size_t group, const float* x, const double* weights) {
    pairs[group] = best_small_pair<kGroup>(x, weights, exact[group], to_float(super),
                                           to_float(super_minimum), MostSmall, kMost);
  }
  uint32_t code(size_t i, double x) const {
    return static_cast<uint32_t>(pairs[i / kGroup].code(x, kMost));
  }
  double value(size_t i, uint32_t code) const {
    const SmallPair& pair = pairs[i / kGroup];
    return pair.exact_scale * code - pair.exact_minimum;
  }
};

// Signed integer scales, in [-half_scale, half_scale - 1], and one super-scale for 16 groups of 16:
// x ~ super * scale * (code - half_code).
template <int HalfCode, int HalfScale>
struct SymmetricEncoder {
  static constexpr size_t kColumns = kSuper, kGroup = 16;
  static constexpr size_t kGroups = kColumns / kGroup;

  std::array<double, kGroups> exact;
  std::array<int32_t, kGroups> scales;
  f16 super;

  void fit(size_t group, const float* x, const double* weights) {
    exact[group] = symmetric_scale<kGroup>(x, weights, HalfCode);
  }
  void set_scales() { super = unit_of(-extreme_of(exact.data(), exact.size()), HalfScale); }
  void settle(size_t group, const float*, const double*) {
    const auto unit = static_cast<double>(to_float(super));
    const double small =
        unit != 0.0 ? nearest_code(exact[group] / unit, -HalfScale, HalfScale - 1.0) : 0.0;
    scales[group] = static_cast<int32_t>(small);
  }
  double scale_of(size_t i) const {
    return static_cast<double>(to_float(super)) * scales[i / kGroup];
  }
  uint32_t code(size_t i, double x) const {
    const double scale = scale_of(i);
    const double code = scale != 0.0 ? nearest_code(x / scale, -HalfCode, HalfCode - 1.0) : 0.0;
    return static_cast<uint32_t>(static_cast<int32_t>(code) + HalfCode);
  }
  double value(size_t i, uint32_t code) const {
    return scale_of(i) * (static_cast<double>(code) - HalfCode);
  }
};

// The reverse of k_scale() and k_minimum().
void pack_k_scales(const std::array<SmallPair, 8>& pairs, uint8_t* packed) {
  const auto scale = [&](size_t group) { return static_cast<uint32_t>(pairs[group].scale); };
  const auto minimum = [&](size_t group) { return static_cast<uint32_t>(pairs[group].minimum); };
  for (size_t group = 0; group < 4; ++group) {
    packed[group] = static_cast<uint8_t>(scale(group) | scale(group + 4) >> 4 << 6);
    packed[group + 4] = static_cast<uint8_t>(minimum(group) | minimum(group + 4) >> 4 << 6);
    packed[group + 8] =
        static_cast<uint8_t>((scale(group + 4) & 15) | (minimum(group + 4) & 15) << 4);
  }
}

// Q4_K and Q5_K: 8 groups of 32; fifth bits come before the nibbles.
template <int Bits>
struct Q45KEncoder : PairedEncoder<32, Bits, 63> {
  static constexpr size_t kBytes = Bits == 5 ? 176 : 144;

  void write(const std::array<uint32_t, kSuper>& codes, uint8_t* out) const {
    put_f16(this->super, out);
    put_f16(this->super_minimum, out + 2);
    pack_k_scales(this->pairs, out + 4);
    uint8_t* fifths = out + 16;
    uint8_t* nibbles = fifths + (Bits == 5 ? 32 : 0);
    std::memset(fifths, 0, static_cast<size_t>(nibbles - fifths + 128));
    for (size_t i = 0; i < kSuper; ++i) {
      const size_t group = i / 32;
      const uint32_t q = codes[i];
      nibbles[group / 2 * 32 + i % 32] |= static_cast<uint8_t>((q & 15) << group % 2 * 4);
      if (Bits == 5) fifths[i % 32] |= static_cast<uint8_t>(q >> 4 << group);
    }
  }
};

struct Q6KEncoder : SymmetricEncoder<32, 128> {
  static constexpr size_t kBytes = 210;

  void write(const std::array<uint32_t, kSuper>& codes, uint8_t* out) const {
    put_f16(super, out + 208);
    std::memset(out, 0, 192);
    for (size_t group = 0; group < kGroups; ++group) {
      out[192 + group] = static_cast<uint8_t>(static_cast<int8_t>(scales[group]));
    }
    for (size_t i = 0; i < kSuper; ++i) {
      const uint32_t q = codes[i];
      // In each half of the block, element 32 k + j has its nibble in byte 32 (k % 2) + j, low or,
      // from k = 2 on, high, and its high two bits as bit pair k of byte j.
      const size_t half = i / 128, k = i % 128 / 32, j = i % 32;
      out[half * 64 + k % 2 * 32 + j] |= static_cast<uint8_t>((q & 15) << k / 2 * 4);
      out[128 + half * 32 + j] |= static_cast<uint8_t>(q >> 4 << 2 * k);
    }
  }
};

struct Q3KEncoder : SymmetricEncoder<4, 32> {
  static constexpr size_t kBytes = 110;

  void write(const std::array<uint32_t, kSuper>& codes, uint8_t* out) const {
    put_f16(super, out + 108);
    std::memset(out, 0, 108);
    for (size_t group = 0; group < kGroups; ++group) {
      // As q3_k_scale() in quant/q3_k.rows.h reads them.
      const auto scale = static_cast<uint32_t>(scales[group] + 32);
      out[96 + group % 8] |= static_cast<uint8_t>((scale & 15) << group / 8 * 4);
      out[104 + group % 4] |= static_cast<uint8_t>(scale >> 4 << group / 4 * 2);
    }
    for (size_t i = 0; i < kSuper; ++i) {
      const uint32_t q = codes[i];
      out[i % 32] |= static_cast<uint8_t>(q >> 2 << i / 32);
      out[32 + i / 128 * 32 + i % 32] |= static_cast<uint8_t>((q & 3) << i % 128 / 32 * 2);
    }
  }
};

struct Q2KEncoder : PairedEncoder<16, 2, 15> {
  static constexpr size_t kBytes = 84;

  void write(const std::array<uint32_t, kSuper>& codes, uint8_t* out) const {
    put_f16(super, out + 80);
    put_f16(super_minimum, out + 82);
    std::memset(out, 0, 80);
    for (size_t group = 0; group < kGroups; ++group) {
      out[group] = static_cast<uint8_t>(pairs[group].scale | pairs[group].minimum << 4);
    }
    for (size_t i = 0; i < kSuper; ++i) {
      out[16 + i / 128 * 32 + i % 32] |= static_cast<uint8_t>(codes[i] << i % 128 / 32 * 2);
    }
  }
};

}  // namespace

RowEncoder q2_k_encoder() {
  return row_encoder_of<Q2KEncoder>(q2_k_format());
}

RowEncoder q3_k_encoder() {
  return row_encoder_of<Q3KEncoder>(q3_k_format());
}

RowEncoder q4_k_encoder() {
  return row_encoder_of<Q45KEncoder<4>>(q4_k_format());
}

RowEncoder q5_k_encoder() {
  return row_encoder_of<Q45KEncoder<5>>(q5_k_format());
}

RowEncoder q6_k_encoder() {
  return row_encoder_of<Q6KEncoder>(q6_k_format());
}

}  // namespace jackscrew
