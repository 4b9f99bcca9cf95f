// Encodes rows for files, as blocks of GGUF or as plain elements. Runs on the host and gives the
// same bits on every processor.
#pragma once

#include <functional>
#include <span>

#include "quant/format.h"

namespace jackscrew {

// Encodes x [cols] as format.row_bytes(cols) bytes. Each element gets the nearest code. Scales
// follow the formula of ggml's reference where it has one (q8_0 to q5_1); for k-quants and IQ4 they
// are those with the least weighted squared error among twenty or thirty candidates.
using EncodeRow = void (*)(const float* x, int64_t cols, uint8_t* out);

// Hears what value an element of a block gets, and may move the elements behind it.
using ElementRounded = std::function<void(int64_t i, float value)>;
// Encodes a block x [block_columns] element after element. The scale of a group is chosen when its
// first element is due, for x as it is by then; what groups have in common is chosen at the
// beginning. Scales are those with the least squared error under `weights` [block_columns].
using RoundBlock = void (*)(float* x, const double* weights, const ElementRounded& rounded,
                            uint8_t* out);

struct RowEncoder {
  const Format* format;
  EncodeRow encode;
  // Of formats in blocks, else null and 0:
  RoundBlock round_block = nullptr;
  int64_t block_columns = 0;
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
