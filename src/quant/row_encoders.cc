#include "quant/row_encoders.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "quant/block_encoder.h"
#include "quant/gguf_formats.h"
#include "quant/plain.h"

namespace jackscrew {

namespace {

constexpr size_t kBlock = 32;  // elements in a block of q8_0 to q5_1

template <class Element>
void encode_plain(const float* x, int64_t cols, uint8_t* out) {
  for (int64_t i = 0; i < cols; ++i) {
    const Element value = from_float<Element>(x[i]);
    std::memcpy(out + i * int64_t{sizeof value}, &value, sizeof value);
  }
}

uint8_t* put_half(float value, uint8_t* out) {
  put_f16(to_f16(value), out);
  return out + sizeof(f16);
}

float inverse(float scale) {
  return scale != 0.0f ? 1.0f / scale : 0.0f;
}

void encode_q8_0(const float* x, int64_t cols, uint8_t* out) {
  for (const float* end = x + cols; x < end; x += kBlock) {
    const float scale = std::abs(extreme_of(x, kBlock)) / 127.0f;
    out = put_half(scale, out);
    for (size_t i = 0; i < kBlock; ++i) {
      *out++ = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * inverse(scale))));
    }
  }
}

// Writes the 4- or 5-bit codes of a block: fifth bits, if any, then nibbles.
uint8_t* put_codes(const std::array<uint32_t, kBlock>& codes, int bits, uint8_t* out) {
  uint32_t fifths = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    fifths |= (codes[i] >> 4 & 1) << i;
  }
  if (bits == 5) {
    std::memcpy(out, &fifths, sizeof fifths);
    out += sizeof fifths;
  }
  put_nibbles_of_halves(codes.data(), out);
  return out + kBlock / 2;
}

// scale * (q - 2^(Bits - 1)): the element furthest from 0 gets code 0, at the end that has one code
// more.
template <int Bits>
void encode_symmetric(const float* x, int64_t cols, uint8_t* out) {
  constexpr uint32_t kMiddle = 1 << (Bits - 1);
  for (const float* end = x + cols; x < end; x += kBlock) {
    const float scale = extreme_of(x, kBlock) / -static_cast<float>(kMiddle);
    out = put_half(scale, out);
    std::array<uint32_t, kBlock> codes;
    for (size_t i = 0; i < codes.size(); ++i) {
      const float code = x[i] * inverse(scale) + static_cast<float>(kMiddle) + 0.5f;
      codes[i] = std::min(static_cast<uint32_t>(code), 2 * kMiddle - 1);
    }
    out = put_codes(codes, Bits, out);
  }
}

// scale * q + least
template <int Bits>
void encode_asymmetric(const float* x, int64_t cols, uint8_t* out) {
  constexpr uint32_t kMost = (1 << Bits) - 1;
  for (const float* end = x + cols; x < end; x += kBlock) {
    const auto [least, most] = std::minmax_element(x, x + kBlock);
    const float scale = (*most - *least) / static_cast<float>(kMost);
    out = put_half(*least, put_half(scale, out));
    std::array<uint32_t, kBlock> codes;
    for (size_t i = 0; i < codes.size(); ++i) {
      codes[i] = std::min(static_cast<uint32_t>((x[i] - *least) * inverse(scale) + 0.5f), kMost);
    }
    out = put_codes(codes, Bits, out);
  }
}

// The blocks of these formats as quantize rounds them: their scales are those with the least error.
struct Q80Encoder {
  static constexpr size_t kColumns = kBlock, kGroup = kBlock, kBytes = 34;
  static constexpr double kMost = 127.0;  // some programs negate codes: -128 would overflow

  float exact;
  f16 scale;

  // So fine a grid gains nothing by clipping the extreme.
  void fit(size_t, const float* x, const double*) {
    exact = std::abs(extreme_of(x, kBlock)) / static_cast<float>(kMost);
  }
  void set_scales() { scale = to_f16(exact); }
  void settle(size_t, const float*, const double*) {}
  uint32_t code(size_t, double x) const {
    const auto unit = static_cast<double>(to_float(scale));
    const double code = unit != 0.0 ? nearest_code(x / unit, -kMost, kMost) : 0.0;
    return static_cast<uint8_t>(static_cast<int8_t>(code));
  }
  double value(size_t, uint32_t code) const {
    return static_cast<double>(to_float(scale)) * static_cast<int8_t>(code);
  }
  void write(const std::array<uint32_t, kColumns>& codes, uint8_t* out) const {
    put_f16(scale, out);
    for (size_t i = 0; i < kColumns; ++i) out[2 + i] = static_cast<uint8_t>(codes[i]);
  }
};

template <int Bits>
struct SymmetricNibblesEncoder {
  static constexpr size_t kColumns = kBlock, kGroup = kBlock;
  static constexpr size_t kBytes = 2 + Bits * kBlock / 8;
  static constexpr int kMiddle = 1 << (Bits - 1);

  double exact;
  f16 scale;

  void fit(size_t, const float* x, const double* weights) {
    exact = symmetric_scale<kBlock>(x, weights, kMiddle);
  }
  void set_scales() { scale = to_f16(static_cast<float>(exact)); }
  void settle(size_t, const float*, const double*) {}
  double scale_of() const { return static_cast<double>(to_float(scale)); }
  uint32_t code(size_t, double x) const {
    const double unit = scale_of();
    const double code = unit != 0.0 ? nearest_code(x / unit, -kMiddle, kMiddle - 1) : 0.0;
    return static_cast<uint32_t>(static_cast<int32_t>(code) + kMiddle);
  }
  double value(size_t, uint32_t code) const {
    return scale_of() * (static_cast<double>(code) - kMiddle);
  }
  void write(const std::array<uint32_t, kColumns>& codes, uint8_t* out) const {
    put_f16(scale, out);
    put_codes(codes, Bits, out + 2);
  }
};

template <int Bits>
struct AsymmetricNibblesEncoder {
  static constexpr size_t kColumns = kBlock, kGroup = kBlock;
  static constexpr size_t kBytes = 4 + Bits * kBlock / 8;
  static constexpr double kMost = (1 << Bits) - 1;

  ScaleAndMinimum exact;
  f16 scale, least;

  void fit(size_t, const float* x, const double* weights) {
    exact = asymmetric_scale<kBlock>(x, weights, kMost, Minima::any);
  }
  void set_scales() {
    scale = to_f16(static_cast<float>(exact.scale));
    least = to_f16(static_cast<float>(-exact.minimum));
  }
  void settle(size_t, const float*, const double*) {}
  uint32_t code(size_t, double x) const {
    const auto unit = static_cast<double>(to_float(scale));
    const double above = x - static_cast<double>(to_float(least));
    return static_cast<uint32_t>(unit > 0.0 ? nearest_code(above / unit, 0.0, kMost) : 0.0);
  }
  double value(size_t, uint32_t code) const {
    return static_cast<double>(to_float(scale)) * code + static_cast<double>(to_float(least));
  }
  void write(const std::array<uint32_t, kColumns>& codes, uint8_t* out) const {
    put_f16(scale, out);
    put_f16(least, out + 2);
    put_codes(codes, Bits, out + 4);
  }
};

template <class Encoder>
RowEncoder reference_encoder(const Format& format, EncodeRow encode) {
  return {&format, encode, rounding_of<Encoder>()};
}

}  // namespace

std::span<const RowEncoder> row_encoders() {
  static const std::array<RowEncoder, 15> kEncoders = {
      {{&f32_format(), encode_plain<float>},
       {&bf16_format(), encode_plain<bf16>},
       {&f16_format(), encode_plain<f16>},
       reference_encoder<Q80Encoder>(q8_0_format(), encode_q8_0),
       reference_encoder<SymmetricNibblesEncoder<4>>(q4_0_format(), encode_symmetric<4>),
       reference_encoder<AsymmetricNibblesEncoder<4>>(q4_1_format(), encode_asymmetric<4>),
       reference_encoder<SymmetricNibblesEncoder<5>>(q5_0_format(), encode_symmetric<5>),
       reference_encoder<AsymmetricNibblesEncoder<5>>(q5_1_format(), encode_asymmetric<5>),
       q2_k_encoder(),
       q3_k_encoder(),
       q4_k_encoder(),
       q5_k_encoder(),
       q6_k_encoder(),
       iq4_nl_encoder(),
       iq4_xs_encoder()}};
  return kEncoders;
}

const RowEncoder* find_row_encoder(const Format& format) {
  for (const RowEncoder& encoder : row_encoders()) {
    if (encoder.format == &format) return &encoder;
  }
  return nullptr;
}

}  // namespace jackscrew
