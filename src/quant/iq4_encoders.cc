// Encoders of IQ4_NL and IQ4_XS, whose sixteen codes stand for numbers of a table; see iq4.rows.h.
#include <array>
#include <cstring>

#include "quant/block_encoder.h"
#include "quant/gguf_formats.h"
#include "quant/iq4.rows.h"

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
    const auto meets = [&] {
      return Iq4Values::values()[code] + Iq4Values::values()[code + 1] + 2.0f * 127.0f;
    };
    while (code < 15 && static_cast<float>(half) >= meets()) ++code;
    nearest[static_cast<size_t>(half)] = code;
  }
  return nearest;
}();

uint8_t nearest_number(double value) {
  const double half = clamped(2.0 * (value + 127.0), 0.0, kHalves - 1.0);
  return kNearest[static_cast<size_t>(half)];
}

// The scale with the least weighted error of x [32] ~ scale * number, among those that map the
// element furthest from 0 to about either end of the table.
double best_table_scale(const float* x, const double* weights) {
  const auto extreme = static_cast<double>(extreme_of(x, kIq4Group));
  if (extreme == 0.0) return 0.0;
  constexpr int kSteps = 7;  // to either side, of two each
  BestScale<kIq4Group> best{x, weights};
  for (const double end : {-127.0, 113.0}) {
    for (int step = -kSteps; step <= kSteps; ++step) {
      best.try_inverse((end + 2.0 * step) / extreme, [](double value) {
        return static_cast<double>(Iq4Values::values()[nearest_number(value)]);
      });
    }
  }
  return best.scale;
}

uint32_t table_code(double scale, double x) {
  return nearest_number(scale != 0.0 ? x / scale : 0.0);
}
double table_value(double scale, uint32_t code) {
  return scale * static_cast<double>(Iq4Values::values()[code]);
}

struct Iq4NlEncoder {
  static constexpr size_t kColumns = kIq4Group, kGroup = kIq4Group, kBytes = 18;

  double exact;
  f16 scale;

  void fit(size_t, const float* x, const double* weights) { exact = best_table_scale(x, weights); }
  void set_scales() { scale = to_f16(static_cast<float>(exact)); }
  void settle(size_t, const float*, const double*) {}
  double scale_of() const { return static_cast<double>(to_float(scale)); }
  uint32_t code(size_t, double x) const { return table_code(scale_of(), x); }
  double value(size_t, uint32_t code) const { return table_value(scale_of(), code); }
  void write(const std::array<uint32_t, kColumns>& codes, uint8_t* out) const {
    put_f16(scale, out);
    put_nibbles_of_halves(codes.data(), out + 2);
  }
};

struct Iq4XsEncoder {
  static constexpr size_t kColumns = 8 * kIq4Group, kGroup = kIq4Group, kBytes = 136;

  std::array<double, 8> exact;
  std::array<int32_t, 8> scales;
  f16 super;

  void fit(size_t group, const float* x, const double* weights) {
    exact[group] = best_table_scale(x, weights);
  }
  void set_scales() { super = unit_of(-extreme_of(exact.data(), exact.size()), 32.0); }
  void settle(size_t group, const float*, const double*) {
    const auto unit = static_cast<double>(to_float(super));
    const double small = unit != 0.0 ? nearest_code(exact[group] / unit, -32.0, 31.0) : 0.0;
    scales[group] = static_cast<int32_t>(small);
  }
  double scale_of(size_t i) const {
    return static_cast<double>(to_float(super)) * scales[i / kGroup];
  }
  uint32_t code(size_t i, double x) const { return table_code(scale_of(i), x); }
  double value(size_t i, uint32_t code) const { return table_value(scale_of(i), code); }
  void write(const std::array<uint32_t, kColumns>& codes, uint8_t* out) const {
    put_f16(super, out);
    uint32_t high = 0;
    std::memset(out + 4, 0, 4);
    for (size_t group = 0; group < 8; ++group) {
      const auto bits = static_cast<uint32_t>(scales[group] + 32);
      out[4 + group / 2] |= static_cast<uint8_t>((bits & 15) << group % 2 * 4);
      high |= bits >> 4 << 2 * group;
      put_nibbles_of_halves(codes.data() + kGroup * group, out + 8 + 16 * group);
    }
    out[2] = static_cast<uint8_t>(high);
    out[3] = static_cast<uint8_t>(high >> 8);
  }
};

}  // namespace

RowEncoder iq4_nl_encoder() {
  return row_encoder_of<Iq4NlEncoder>(iq4_nl_format());
}

RowEncoder iq4_xs_encoder() {
  return row_encoder_of<Iq4XsEncoder>(iq4_xs_format());
}

}  // namespace jackscrew
