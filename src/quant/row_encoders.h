// Encodes rows for files, as blocks of GGUF or as plain elements. Runs on the host and gives the
// same bits on every processor.
#pragma once

#include <span>

#include "quant/format.h"

namespace jackscrew {

// Encodes x [cols] as format.row_bytes(cols) bytes. Each element gets the nearest code. Scales
// follow the formula of ggml's reference where it has one (q8_0 to q5_1); for k-quants and IQ4 they
// are those with the least weighted squared error among twenty or thirty candidates.
using EncodeRow = void (*)(const float* x, int64_t cols, uint8_t* out);

struct RowEncoder {
  const Format* format;
  EncodeRow encode;
};
std::span<const RowEncoder> row_encoders();
// Null if rows cannot be written in that format.
const RowEncoder* find_row_encoder(const Format& format);

// Writes a scale as f16 and returns its rounded value.
float write_f16_scale(double value, uint8_t* out);

// In quant/k_encoders.cc:
void encode_q2_k(const float* x, int64_t cols, uint8_t* out);
void encode_q3_k(const float* x, int64_t cols, uint8_t* out);
void encode_q4_k(const float* x, int64_t cols, uint8_t* out);
void encode_q5_k(const float* x, int64_t cols, uint8_t* out);
void encode_q6_k(const float* x, int64_t cols, uint8_t* out);
// In quant/iq4_encoders.cc:
void encode_iq4_nl(const float* x, int64_t cols, uint8_t* out);
void encode_iq4_xs(const float* x, int64_t cols, uint8_t* out);

}  // namespace jackscrew
