// Rows as files keep them: numbers as the blocks of GGUF, and as plain elements. On the host; the
// same bits on every processor.
#pragma once

#include <span>

#include "quant/format.h"

namespace jackscrew {

// Writes format.row_bytes(cols) bytes of x [cols]. Every code is the nearest to its number; scales
// are those of ggml's reference where that has a formula (q8_0 to q5_1), and for k-quants and the
// tables of IQ4 those of the least squared error among some twenty or thirty.
using EncodeRow = void (*)(const float* x, int64_t cols, uint8_t* out);

struct RowEncoder {
  const Format* format;
  EncodeRow encode;
};
std::span<const RowEncoder> row_encoders();
// Null where rows cannot be written in it.
const RowEncoder* find_row_encoder(const Format& format);

// Writes a scale as f16; what it then is.
float put_scale(double value, uint8_t* out);

// Those of quant/k_encoders.cc.
void encode_q2_k(const float* x, int64_t cols, uint8_t* out);
void encode_q3_k(const float* x, int64_t cols, uint8_t* out);
void encode_q4_k(const float* x, int64_t cols, uint8_t* out);
void encode_q5_k(const float* x, int64_t cols, uint8_t* out);
void encode_q6_k(const float* x, int64_t cols, uint8_t* out);
// Those of quant/iq4_encoders.cc.
void encode_iq4_nl(const float* x, int64_t cols, uint8_t* out);
void encode_iq4_xs(const float* x, int64_t cols, uint8_t* out);

}  // namespace jackscrew
