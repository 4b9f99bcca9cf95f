// Encodes rows for files, as blocks of GGUF or as plain elements. Runs on the host and gives the
// same bits on every processor.
#pragma once

#include <span>

#include "quant/block_rounding.h"
#include "quant/format.h"

namespace jackscrew {

// Encodes x [cols] as format.row_bytes(cols) bytes. Each element gets the nearest code. Scales
// follow the formula of ggml's reference where it has one (q8_0 to q5_1); for k-quants and IQ4 they
// are those with the least weighted squared error among twenty or thirty candidates.
using EncodeRow = void (*)(const float* x, int64_t cols, uint8_t* out);

struct RowEncoder {
  const Format* format;
  EncodeRow encode;
  BlockRounding blocks = {};
};
std::span<const RowEncoder> row_encoders();
// Null if rows cannot be written in that format.
const RowEncoder* find_row_encoder(const Format& format);

// In quant/k_encoders.cc:
RowEncoder q2_k_encoder();
RowEncoder q3_k_encoder();
RowEncoder q4_k_encoder();
RowEncoder q5_k_encoder();
RowEncoder q6_k_encoder();
// In quant/iq4_encoders.cc:
RowEncoder iq4_nl_encoder();
RowEncoder iq4_xs_encoder();

}  // namespace jackscrew
