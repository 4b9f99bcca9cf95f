// Row kernels of the transformer: norms, rotary embedding, SwiGLU, embedding rows. Forward and
// backward stand beside each other. A row is a token unless said otherwise.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/row_math.h"
#include "kernels/row_operands.h"

namespace jackscrew {

// Columns of a matrix are summed over tokens in two passes, so that there is work for all of a GPU
// and no sum depends on the number of threads: first each chunk of tokens sums, token by token,
// into its row of `partial`, then AddColumns adds up these rows in order. Chunks have kTokenChunk
// tokens, or more where there would be over kMostTokenChunks of them: either pass then takes a few
// hundred steps.
inline constexpr int64_t kTokenChunk = 128;
inline constexpr int64_t kMostTokenChunks = 256;
// Columns of a chunk that one row of such a kernel sums: a GPU's team has as many threads.
inline constexpr int64_t kColumnBlock = 256;

struct ChunkColumns {
  int64_t chunk, first, end;  // its tokens [first, end)
  int64_t column, count;      // columns [column, column + count)
};
JACKSCREW_ROW ChunkColumns chunk_columns(int64_t row, int64_t tokens, int64_t width,
                                         int64_t tokens_of_chunk) {
  const int64_t blocks = (width + kColumnBlock - 1) / kColumnBlock;
  const int64_t chunk = row / blocks;
  const int64_t column = row % blocks * kColumnBlock;
  const int64_t end = (chunk + 1) * tokens_of_chunk;
  const int64_t left = width - column;
  return {chunk, chunk * tokens_of_chunk, end < tokens ? end : tokens, column,
          left < kColumnBlock ? left : kColumnBlock};
}

// out [count] = the sums of term(token, column) over tokens [first, end), in order.
template <class Team, class Term>
JACKSCREW_ROW void sum_columns(const Team& team, int64_t first, int64_t end, int64_t count,
                               float* out, const Term& term) {
  typename Team::template RowRegisters<float, kColumnBlock> sums;
  team.each(count, [&](int64_t i) { sums[i] = 0.0f; });
  // Several tokens at a time, whose loads a GPU then waits for together.
  constexpr int64_t kTokens = 8;
  int64_t token = first;
  for (; token + kTokens <= end; token += kTokens) {
    team.each(count, [&](int64_t i) {
      float sum = sums[i];
      for (int64_t k = 0; k < kTokens; ++k) sum += term(token + k, i);
      sums[i] = sum;
    });
  }
  for (; token < end; ++token) {
    team.each(count, [&](int64_t i) { sums[i] += term(token, i); });
  }
  team.each(count, [&](int64_t i) { out[i] = sums[i]; });
}

// to += the sum of the rows of partial. A row of the kernel is a block of columns.
struct AddColumns {
  const float* partial;  // [chunks, width]
  float* to;             // [width]
  int64_t chunks, width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const ChunkColumns part = chunk_columns(row, chunks, width, chunks);
    const float* from = partial + part.column;
    float* sums = to + part.column;
    team.each(part.count, [&](int64_t i) {
      float sum = 0.0f;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += from[chunk * width + i];
      sums[i] += sum;
    });
  }
};
JACKSCREW_ROW_KERNEL(AddColumns)

// In the templates below, Activation is float or the type to which values between two products are
// rounded. Input is Activation, or float for the residual stream.

// One token's y = x * rstd * weight.
template <class Team, class Input, class Activation>
JACKSCREW_ROW void rms_norm_row(const Team& team, const Input* x, float rstd, const float* weight,
                                Activation* y, int64_t hidden) {
  team.elementwise(
      hidden, [&](float in, float of_weight, float& out) { out = in * rstd * of_weight; }, reads(x),
      reads(weight), writes(y));
}

// y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019, eq. 4).
template <class Input, class Activation>
struct RmsNormForward {
  const Input* x;       // [tokens, hidden]
  const float* weight;  // [hidden]
  Activation* y;        // [tokens, hidden]
  float* rstd;          // [tokens]
  int64_t hidden;
  float epsilon;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t token) const {
    const Input* in = x + token * hidden;
    const float squares =
        team.sum(hidden, [&](int64_t i) { return to_float(in[i]) * to_float(in[i]); });
    const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(hidden) + epsilon);
    team.once([&] { rstd[token] = scale; });
    rms_norm_row(team, in, scale, weight, y + token * hidden, hidden);
  }
};
using RmsNormForwardF32 = RmsNormForward<float, float>;
using RmsNormForwardF32Bf16 = RmsNormForward<float, bf16>;
using RmsNormForwardBf16 = RmsNormForward<bf16, bf16>;
JACKSCREW_ROW_KERNEL(RmsNormForwardF32)
JACKSCREW_ROW_KERNEL(RmsNormForwardF32Bf16)
JACKSCREW_ROW_KERNEL(RmsNormForwardBf16)

// Recomputes y from a kept rstd, for a backward pass that did not keep y.
template <class Input, class Activation>
struct RmsNormApply {
  const Input* x;       // [tokens, hidden]
  const float* weight;  // [hidden]
  const float* rstd;    // [tokens]
  Activation* y;        // [tokens, hidden]
  int64_t hidden;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t token) const {
    rms_norm_row(team, x + token * hidden, rstd[token], weight, y + token * hidden, hidden);
  }
};
using RmsNormApplyF32 = RmsNormApply<float, float>;
using RmsNormApplyF32Bf16 = RmsNormApply<float, bf16>;
using RmsNormApplyBf16 = RmsNormApply<bf16, bf16>;
JACKSCREW_ROW_KERNEL(RmsNormApplyF32)
JACKSCREW_ROW_KERNEL(RmsNormApplyF32Bf16)
JACKSCREW_ROW_KERNEL(RmsNormApplyBf16)

// dx += rstd * (weight dy - xhat * mean(weight dy xhat)), xhat = x * rstd.
template <class Input>
struct RmsNormBackward {
  const Input* x;       // [tokens, hidden]
  const float* weight;  // [hidden]
  const float* rstd;    // [tokens]
  const float* dy;      // [tokens, hidden]
  float* dx;            // [tokens, hidden], added to
  int64_t hidden;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t token) const {
    const Input* in = x + token * hidden;
    const float* grad = dy + token * hidden;
    float* out = dx + token * hidden;
    const float scale = rstd[token];
    const float dot =
        team.sum(hidden, [&](int64_t i) { return weight[i] * grad[i] * to_float(in[i]); });
    const float mean = dot * scale * scale * scale / static_cast<float>(hidden);
    team.elementwise(
        hidden,
        [&](float value, float of_weight, float d, float& sum) {
          sum += scale * of_weight * d - mean * value;
        },
        reads(in), reads(weight), reads(grad), updates(out));
  }
};
using RmsNormBackwardF32 = RmsNormBackward<float>;
using RmsNormBackwardBf16 = RmsNormBackward<bf16>;
JACKSCREW_ROW_KERNEL(RmsNormBackwardF32)
JACKSCREW_ROW_KERNEL(RmsNormBackwardBf16)

// Sums over chunks of tokens of dy * x * rstd, the gradient of the weight.
template <class Input>
struct RmsNormWeightGradient {
  const Input* x;     // [tokens, hidden]
  const float* rstd;  // [tokens]
  const float* dy;    // [tokens, hidden]
  float* partial;     // [chunks, hidden]
  int64_t tokens, hidden, tokens_of_chunk;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const ChunkColumns part = chunk_columns(row, tokens, hidden, tokens_of_chunk);
    const Input* in = x + part.column;
    const float* grad = dy + part.column;
    float* out = partial + part.chunk * hidden + part.column;
    sum_columns(team, part.first, part.end, part.count, out, [&](int64_t token, int64_t i) {
      return grad[token * hidden + i] * to_float(in[token * hidden + i]) * rstd[token];
    });
  }
};
using RmsNormWeightGradientF32 = RmsNormWeightGradient<float>;
using RmsNormWeightGradientBf16 = RmsNormWeightGradient<bf16>;
JACKSCREW_ROW_KERNEL(RmsNormWeightGradientF32)
JACKSCREW_ROW_KERNEL(RmsNormWeightGradientBf16)

// to = y + bias.
template <class Activation>
struct AddBias {
  const float* bias;  // [width]
  const float* y;     // [tokens, width]
  Activation* to;     // [tokens, width]; may be y
  int64_t width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t token) const {
    team.elementwise(
        width, [](float of_bias, float value, float& out) { out = value + of_bias; }, reads(bias),
        reads(y + token * width), writes(to + token * width));
  }
};
using AddBiasF32 = AddBias<float>;
using AddBiasBf16 = AddBias<bf16>;
JACKSCREW_ROW_KERNEL(AddBiasF32)
JACKSCREW_ROW_KERNEL(AddBiasBf16)

// y = factor * x.
template <class Activation>
struct ScaleRows {
  const float* x;  // [rows, width]
  Activation* y;   // [rows, width]; may be x
  int64_t width;
  float factor;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    team.elementwise(
        width, [&](float value, float& out) { out = value * factor; }, reads(x + row * width),
        writes(y + row * width));
  }
};
using ScaleRowsF32 = ScaleRows<float>;
using ScaleRowsBf16 = ScaleRows<bf16>;
JACKSCREW_ROW_KERNEL(ScaleRowsF32)
JACKSCREW_ROW_KERNEL(ScaleRowsBf16)

// Sums over chunks of tokens of dy, the gradient of the bias.
template <class Activation>
struct BiasGradient {
  const Activation* dy;  // [tokens, width]
  float* partial;        // [chunks, width]
  int64_t tokens, width, tokens_of_chunk;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const ChunkColumns part = chunk_columns(row, tokens, width, tokens_of_chunk);
    const Activation* grad = dy + part.column;
    float* out = partial + part.chunk * width + part.column;
    sum_columns(team, part.first, part.end, part.count, out,
                [&](int64_t token, int64_t i) { return to_float(grad[token * width + i]); });
  }
};
using BiasGradientF32 = BiasGradient<float>;
using BiasGradientBf16 = BiasGradient<bf16>;
JACKSCREW_ROW_KERNEL(BiasGradientF32)
JACKSCREW_ROW_KERNEL(BiasGradientBf16)

// Sums over chunks of tokens of dy * y.
template <class Activation>
struct ColumnDots {
  const Activation* dy;  // [tokens, width]
  const float* y;        // [tokens, width]
  float* partial;        // [chunks, width]
  int64_t tokens, width, tokens_of_chunk;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const ChunkColumns part = chunk_columns(row, tokens, width, tokens_of_chunk);
    const Activation* grad = dy + part.column;
    const float* of = y + part.column;
    float* out = partial + part.chunk * width + part.column;
    sum_columns(team, part.first, part.end, part.count, out, [&](int64_t token, int64_t i) {
      return to_float(grad[token * width + i]) * of[token * width + i];
    });
  }
};
using ColumnDotsF32 = ColumnDots<float>;
using ColumnDotsBf16 = ColumnDots<bf16>;
JACKSCREW_ROW_KERNEL(ColumnDotsF32)
JACKSCREW_ROW_KERNEL(ColumnDotsBf16)

// y = x with pairs (i, i + head_dim / 2) of every head rotated (Su et al. 2021, in the half-split
// layout of Hugging Face's Llama). `direction` is 1 forward and -1 backward, the rotation's
// transpose.
template <class Input, class Activation>
struct RotaryEmbedding {
  const Input* x;            // [tokens, heads * head_dim], row stride `stride`
  Activation* y;             // likewise; may be x
  const int32_t* positions;  // [tokens]
  const float* cosine;       // [max_positions, head_dim / 2]
  const float* sine;         // [max_positions, head_dim / 2]
  int64_t heads, head_dim, stride;
  float direction;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t token) const {
    const int64_t half = head_dim / 2;
    const float* c = cosine + positions[token] * half;
    const float* s = sine + positions[token] * half;
    team.each(heads, half, [&](int64_t head, int64_t i) {
      const int64_t first = token * stride + head * head_dim;
      const float a = to_float(x[first + i]);
      const float b = to_float(x[first + half + i]);
      y[first + i] = from_float<Activation>(a * c[i] - direction * b * s[i]);
      y[first + half + i] = from_float<Activation>(b * c[i] + direction * a * s[i]);
    });
  }
};
using RotaryEmbeddingF32 = RotaryEmbedding<float, float>;
using RotaryEmbeddingF32Bf16 = RotaryEmbedding<float, bf16>;
using RotaryEmbeddingBf16 = RotaryEmbedding<bf16, bf16>;
JACKSCREW_ROW_KERNEL(RotaryEmbeddingF32)
JACKSCREW_ROW_KERNEL(RotaryEmbeddingF32Bf16)
JACKSCREW_ROW_KERNEL(RotaryEmbeddingBf16)

// h = silu(gate) * up (Shazeer 2020).
template <class Activation>
struct SwigluForward {
  const Activation* gate;  // [tokens, width]
  const Activation* up;    // [tokens, width]
  Activation* h;           // [tokens, width]
  int64_t width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t token) const {
    team.elementwise(
        width, [](float x, float u, float& out) { out = x * row_sigmoid(x) * u; },
        reads(gate + token * width), reads(up + token * width), writes(h + token * width));
  }
};
using SwigluForwardF32 = SwigluForward<float>;
using SwigluForwardBf16 = SwigluForward<bf16>;
JACKSCREW_ROW_KERNEL(SwigluForwardF32)
JACKSCREW_ROW_KERNEL(SwigluForwardBf16)

template <class Activation>
struct SwigluBackward {
  const Activation* gate;  // [tokens, width]
  const Activation* up;    // [tokens, width]
  const Activation* dh;    // [tokens, width]
  Activation* dgate;       // [tokens, width]; may be dh
  Activation* dup;         // [tokens, width]
  int64_t width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t token) const {
    team.elementwise(
        width,
        [](float x, float u, float d, float& out_gate, float& out_up) {
          const float sigmoid = row_sigmoid(x);
          out_up = d * x * sigmoid;
          out_gate = d * u * sigmoid * (1.0f + x * (1.0f - sigmoid));
        },
        reads(gate + token * width), reads(up + token * width), reads(dh + token * width),
        writes(dgate + token * width), writes(dup + token * width));
  }
};
using SwigluBackwardF32 = SwigluBackward<float>;
using SwigluBackwardBf16 = SwigluBackward<bf16>;
JACKSCREW_ROW_KERNEL(SwigluBackwardF32)
JACKSCREW_ROW_KERNEL(SwigluBackwardBf16)

// Puts the keys and values of new tokens into a cache, each in the row that its position names.
template <class Activation>
struct CacheKeysAndValues {
  const Activation* k;       // [tokens, width]
  const Activation* v;       // [tokens, width]
  const int32_t* positions;  // [tokens]
  Activation* keys;          // [capacity, width]
  Activation* values;        // [capacity, width]
  int64_t width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t token) const {
    const int64_t at = positions[token] * width;
    team.elementwise(
        width,
        [](float key, float value, float& to_key, float& to_value) {
          to_key = key;
          to_value = value;
        },
        reads(k + token * width), reads(v + token * width), writes(keys + at), writes(values + at));
  }
};
using CacheKeysAndValuesF32 = CacheKeysAndValues<float>;
using CacheKeysAndValuesBf16 = CacheKeysAndValues<bf16>;
JACKSCREW_ROW_KERNEL(CacheKeysAndValuesF32)
JACKSCREW_ROW_KERNEL(CacheKeysAndValuesBf16)

// to[row] = from[indices[row]].
struct GatherRows {
  const float* from;       // [?, width]
  const int32_t* indices;  // [rows]
  float* to;               // [rows, width]
  int64_t width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float* in = from + indices[row] * width;
    float* out = to + row * width;
    team.each(width, [&](int64_t i) { out[i] = in[i]; });
  }
};
JACKSCREW_ROW_KERNEL(GatherRows)

// to[indices[row]] = from[row]; the indices differ from one another.
struct ScatterRows {
  const float* from;       // [rows, width]
  const int32_t* indices;  // [rows]
  float* to;               // [?, width]
  int64_t width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float* in = from + row * width;
    float* out = to + indices[row] * width;
    team.each(width, [&](int64_t i) { out[i] = in[i]; });
  }
};
JACKSCREW_ROW_KERNEL(ScatterRows)

// to[indices[row]] += from[row] where indices may repeat. A row of the kernel has a block of
// columns and the indices of one residue: it goes through all indices and adds its own in order.
struct ScatterAddRows {
  static constexpr int64_t kResidues = 32;
  const float* from;       // [rows, width]
  const int32_t* indices;  // [rows]
  float* to;               // [?, width]
  int64_t rows, width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const ChunkColumns part = chunk_columns(row, kResidues, width, 1);
    for (int64_t other = 0; other < rows; ++other) {
      if (indices[other] % kResidues != part.chunk) continue;
      const float* in = from + other * width + part.column;
      float* out = to + indices[other] * width + part.column;
      team.each(part.count, [&](int64_t i) { out[i] += in[i]; });
    }
  }
};
JACKSCREW_ROW_KERNEL(ScatterAddRows)

}  // namespace jackscrew
