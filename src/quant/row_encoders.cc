#include "quant/row_encoders.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "quant/iq4.h"
#include "quant/plain.h"
#include "quant/q2_k.h"
#include "quant/q3_k.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

namespace jackscrew {

namespace {

constexpr int64_t kBlock = 32;  // elements in a block of q8_0 to q5_1

template <class Element>
void encode_plain(const float* x, int64_t cols, uint8_t* out) {
  for (int64_t i = 0; i < cols; ++i) {
    const Element value = from_float<Element>(x[i]);
    std::memcpy(out + i * int64_t{sizeof value}, &value, sizeof value);
  }
}

uint8_t* put_half(float value, uint8_t* out) {
  write_f16_scale(static_cast<double>(value), out);
  return out + sizeof(f16);
}

float inverse(float scale) {
  return scale != 0.0f ? 1.0f / scale : 0.0f;
}

// The number furthest from 0.
float extreme(const float* x) {
  return *std::max_element(x, x + kBlock,
                           [](float a, float b) { return std::abs(a) < std::abs(b); });
}

void encode_q8_0(const float* x, int64_t cols, uint8_t* out) {
  for (const float* end = x + cols; x < end; x += kBlock) {
    const float scale = std::abs(extreme(x)) / 127.0f;
    out = put_half(scale, out);
    for (int64_t i = 0; i < kBlock; ++i) {
      *out++ = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * inverse(scale))));
    }
  }
}

// Writes the 4- or 5-bit codes of a block: fifth bits, if any, then nibbles, of which byte i has
// elements i and i + 16.
uint8_t* put_codes(const std::array<int32_t, kBlock>& codes, int bits, uint8_t* out) {
  uint32_t fifths = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    fifths |= static_cast<uint32_t>(codes[i] >> 4 & 1) << i;
  }
  if (bits == 5) {
    std::memcpy(out, &fifths, sizeof fifths);
    out += sizeof fifths;
  }
  for (size_t i = 0; i < kBlock / 2; ++i) {
    *out++ = static_cast<uint8_t>((codes[i] & 15) | (codes[i + kBlock / 2] & 15) << 4);
  }
  return out;
}

// scale * (q - 2^(Bits - 1)): the element furthest from 0 gets code 0, at the end that has one code
// more.
template <int Bits>
void encode_symmetric(const float* x, int64_t cols, uint8_t* out) {
  constexpr int32_t kMiddle = 1 << (Bits - 1);
  for (const float* end = x + cols; x < end; x += kBlock) {
    const float scale = extreme(x) / static_cast<float>(-kMiddle);
    out = put_half(scale, out);
    std::array<int32_t, kBlock> codes;
    for (size_t i = 0; i < codes.size(); ++i) {
      const float code = x[i] * inverse(scale) + static_cast<float>(kMiddle) + 0.5f;
      codes[i] = std::min(static_cast<int32_t>(code), 2 * kMiddle - 1);
    }
    out = put_codes(codes, Bits, out);
  }
}

// scale * q + least
template <int Bits>
void encode_asymmetric(const float* x, int64_t cols, uint8_t* out) {
  constexpr int32_t kMost = (1 << Bits) - 1;
  for (const float* end = x + cols; x < end; x += kBlock) {
    const auto [least, most] = std::minmax_element(x, x + kBlock);
    const float scale = (*most - *least) / static_cast<float>(kMost);
    out = put_half(*least, put_half(scale, out));
    std::array<int32_t, kBlock> codes;
    for (size_t i = 0; i < codes.size(); ++i) {
      codes[i] = std::min(static_cast<int32_t>((x[i] - *least) * inverse(scale) + 0.5f), kMost);
    }
    out = put_codes(codes, Bits, out);
  }
}

}  // namespace

float write_f16_scale(double value, uint8_t* out) {
  const f16 half = to_f16(static_cast<float>(value));
  std::memcpy(out, &half, sizeof half);
  return to_float(half);
}

std::span<const RowEncoder> row_encoders() {
  static const std::array<RowEncoder, 15> kEncoders = {{{&f32_format(), encode_plain<float>},
                                                        {&bf16_format(), encode_plain<bf16>},
                                                        {&f16_format(), encode_plain<f16>},
                                                        {&q8_0_format(), encode_q8_0},
                                                        {&q4_0_format(), encode_symmetric<4>},
                                                        {&q4_1_format(), encode_asymmetric<4>},
                                                        {&q5_0_format(), encode_symmetric<5>},
                                                        {&q5_1_format(), encode_asymmetric<5>},
                                                        {&q2_k_format(), encode_q2_k},
                                                        {&q3_k_format(), encode_q3_k},
                                                        {&q4_k_format(), encode_q4_k},
                                                        {&q5_k_format(), encode_q5_k},
                                                        {&q6_k_format(), encode_q6_k},
                                                        {&iq4_nl_format(), encode_iq4_nl},
                                                        {&iq4_xs_format(), encode_iq4_xs}}};
  return kEncoders;
}

const RowEncoder* find_row_encoder(const Format& format) {
  for (const RowEncoder& encoder : row_encoders()) {
    if (encoder.format == &format) return &encoder;
  }
  return nullptr;
}

}  // namespace jackscrew
