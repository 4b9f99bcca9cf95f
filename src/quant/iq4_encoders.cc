// Encoders of IQ4_NL and IQ4_XS, whose sixteen codes stand for numbers of a table; see iq4.rows.h.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "quant/iq4.rows.h"
#include "quant/row_encoders.h"

namespace jackscrew {

namespace {

constexpr size_t kIq4Group = 32;  // elements per scale

// The nearest code for each multiple of 1/2 from -127 on. The midpoints between numbers, where the
// nearest code changes, are such multiples.
constexpr int kHalves = 2 * (113 + 127);
const std::array<uint8_t, kHalves> kNearest = [] {
  std::array<uint8_t, kHalves> nearest{};
  uint8_t code = 0;
  for (int half = 0; half < kHalves; ++half) {
    const auto meets = [&] { return iq4_values()[code] + iq4_values()[code + 1] + 2.0f * 127.0f; };
    while (code < 15 && static_cast<float>(half) >= meets()) ++code;
    nearest[static_cast<size_t>(half)] = code;
  }
  return nearest;
}();

uint8_t nearest_number(double value) {
  const double half = std::clamp(2.0 * (value + 127.0), 0.0, kHalves - 1.0);
  return kNearest[static_cast<size_t>(half)];
}

// The scale with the least weighted error of x [32] ~ scale * number, among those that map the
// element furthest from 0 to about either end of the table.
double best_table_scale(const float* x) {
  const auto furthest = [](float a, float b) { return std::abs(a) < std::abs(b); };
  const auto extreme = static_cast<double>(*std::max_element(x, x + kIq4Group, furthest));
  if (extreme == 0.0) return 0.0;
  double square = 0.0;
  for (size_t i = 0; i < kIq4Group; ++i) {
    square += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  const double mean = std::sqrt(square / static_cast<double>(kIq4Group));
  constexpr int kSteps = 7;  // to either side, of two each
  double best = 0.0, best_gain = -1.0;
  for (const double end : {-127.0, 113.0}) {
    for (int step = -kSteps; step <= kSteps; ++step) {
      const double inverse = (end + 2.0 * step) / extreme;
      double xq = 0.0, qq = 0.0;  // weighted sums: the best scale for these codes is their ratio
      for (size_t i = 0; i < kIq4Group; ++i) {
        const double value = static_cast<double>(x[i]);
        const auto number = static_cast<double>(iq4_values()[nearest_number(value * inverse)]);
        const double weight = mean + std::abs(value);  // as in k_encoders.cc
        xq += weight * value * number;
        qq += weight * number * number;
      }
      if (qq > 0.0 && xq * xq / qq > best_gain) {
        best_gain = xq * xq / qq;
        best = xq / qq;
      }
    }
  }
  return best;
}

// 16 bytes, of which byte i has elements i (low nibble) and i + 16.
void put_numbers(const float* x, double scale, uint8_t* out) {
  const auto code = [&](size_t i) {
    return nearest_number(scale != 0.0 ? static_cast<double>(x[i]) / scale : 0.0);
  };
  for (size_t i = 0; i < kIq4Group / 2; ++i) {
    out[i] = static_cast<uint8_t>(code(i) | code(i + kIq4Group / 2) << 4);
  }
}

}  // namespace

void encode_iq4_nl(const float* x, int64_t cols, uint8_t* out) {
  for (const float* end = x + cols; x < end; x += kIq4Group, out += 18) {
    put_numbers(x, static_cast<double>(write_f16_scale(best_table_scale(x), out)), out + 2);
  }
}

void encode_iq4_xs(const float* x, int64_t cols, uint8_t* out) {
  for (const float* end = x + cols; x < end; x += 8 * kIq4Group, out += 136) {
    std::array<double, 8> exact;
    double extreme = 0.0;  // the scale furthest from 0
    for (size_t group = 0; group < 8; ++group) {
      exact[group] = best_table_scale(x + kIq4Group * group);
      if (std::abs(exact[group]) > std::abs(extreme)) extreme = exact[group];
    }
    const auto super = static_cast<double>(write_f16_scale(extreme / -32.0, out));
    uint32_t high = 0;
    std::memset(out + 4, 0, 4);
    for (size_t group = 0; group < 8; ++group) {
      const double small =
          super != 0.0 ? std::clamp(std::nearbyint(exact[group] / super), -32.0, 31.0) : 0.0;
      const auto bits = static_cast<uint32_t>(static_cast<int32_t>(small) + 32);
      out[4 + group / 2] |= static_cast<uint8_t>((bits & 15) << group % 2 * 4);
      high |= bits >> 4 << 2 * group;
      put_numbers(x + kIq4Group * group, super * small, out + 8 + 16 * group);
    }
    out[2] = static_cast<uint8_t>(high);
    out[3] = static_cast<uint8_t>(high >> 8);
  }
}

}  // namespace jackscrew
