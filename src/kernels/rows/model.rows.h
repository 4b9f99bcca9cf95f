// Row kernels of the transformer: norms, rotary embedding, SwiGLU, embedding rows. Forward and
// backward stand beside each other. A row is a token unless said otherwise.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/row_math.h"

namespace jackscrew {

// Kernels that reduce over tokens take a block of columns as their row, so that each column is
// summed by one thread in token order, whatever the number of threads.
inline constexpr int64_t kColumnBlock = 64;
struct Columns {
  int64_t begin, count;
};
JACKSCREW_ROW Columns columns_of_block(int64_t block, int64_t width) {
  const int64_t left = width - block * kColumnBlock;
  return {block * kColumnBlock, left < kColumnBlock ? left : kColumnBlock};
}

// Activation: float, or the type to which what lies between two products is rounded. Input: that,
// or the residual stream's float.

// One token's y = x * rstd * weight.
template <class Team, class Input, class Activation>
JACKSCREW_ROW void rms_norm_row(const Team& team, const Input* x, float rstd, const float* weight,
                                Activation* y, int64_t hidden) {
  team.each(hidden,
            [&](int64_t i) { y[i] = from_float<Activation>(to_float(x[i]) * rstd * weight[i]); });
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

// The same y from a kept rstd, for a backward that did not keep y.
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
    team.each(hidden,
              [&](int64_t i) { out[i] += scale * weight[i] * grad[i] - mean * to_float(in[i]); });
  }
};
using RmsNormBackwardF32 = RmsNormBackward<float>;
using RmsNormBackwardBf16 = RmsNormBackward<bf16>;
JACKSCREW_ROW_KERNEL(RmsNormBackwardF32)
JACKSCREW_ROW_KERNEL(RmsNormBackwardBf16)

// dweight += sum over tokens of dy * x * rstd. A row is a block of columns.
template <class Input>
struct RmsNormWeightGradient {
  const Input* x;     // [tokens, hidden]
  const float* rstd;  // [tokens]
  const float* dy;    // [tokens, hidden]
  float* dweight;     // [hidden], added to
  int64_t tokens, hidden;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t block) const {
    const Columns columns = columns_of_block(block, hidden);
    for (int64_t token = 0; token < tokens; ++token) {
      const float scale = rstd[token];
      const Input* in = x + token * hidden + columns.begin;
      const float* grad = dy + token * hidden + columns.begin;
      team.each(columns.count, [&](int64_t i) {
        dweight[columns.begin + i] += grad[i] * to_float(in[i]) * scale;
      });
    }
  }
};
using RmsNormWeightGradientF32 = RmsNormWeightGradient<float>;
using RmsNormWeightGradientBf16 = RmsNormWeightGradient<bf16>;
JACKSCREW_ROW_KERNEL(RmsNormWeightGradientF32)
JACKSCREW_ROW_KERNEL(RmsNormWeightGradientBf16)

// y += bias.
template <class Activation>
struct AddBias {
  const float* bias;  // [width]
  Activation* y;      // [tokens, width]
  int64_t width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t token) const {
    Activation* out = y + token * width;
    team.each(width,
              [&](int64_t i) { out[i] = from_float<Activation>(to_float(out[i]) + bias[i]); });
  }
};
using AddBiasF32 = AddBias<float>;
using AddBiasBf16 = AddBias<bf16>;
JACKSCREW_ROW_KERNEL(AddBiasF32)
JACKSCREW_ROW_KERNEL(AddBiasBf16)

// dbias += sum over tokens of dy. A row is a block of columns.
struct BiasGradient {
  const float* dy;  // [tokens, width]
  float* dbias;     // [width], added to
  int64_t tokens, width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t block) const {
    const Columns columns = columns_of_block(block, width);
    for (int64_t token = 0; token < tokens; ++token) {
      const float* grad = dy + token * width + columns.begin;
      team.each(columns.count, [&](int64_t i) { dbias[columns.begin + i] += grad[i]; });
    }
  }
};
JACKSCREW_ROW_KERNEL(BiasGradient)

// Rotates pairs (i, i + head_dim / 2) of every head in place (Su et al. 2021, in the half-split
// layout of Hugging Face's Llama). `direction` is 1 forward and -1 backward, the rotation's
// transpose.
template <class Activation>
struct RotaryEmbedding {
  Activation* x;             // [tokens, heads * head_dim], row stride `stride`
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
    for (int64_t head = 0; head < heads; ++head) {
      Activation* low = x + token * stride + head * head_dim;
      Activation* high = low + half;
      team.each(half, [&](int64_t i) {
        const float a = to_float(low[i]);
        const float b = to_float(high[i]);
        low[i] = from_float<Activation>(a * c[i] - direction * b * s[i]);
        high[i] = from_float<Activation>(b * c[i] + direction * a * s[i]);
      });
    }
  }
};
using RotaryEmbeddingF32 = RotaryEmbedding<float>;
using RotaryEmbeddingBf16 = RotaryEmbedding<bf16>;
JACKSCREW_ROW_KERNEL(RotaryEmbeddingF32)
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
    const Activation* g = gate + token * width;
    const Activation* u = up + token * width;
    Activation* out = h + token * width;
    team.each(width, [&](int64_t i) {
      const float x = to_float(g[i]);
      out[i] = from_float<Activation>(x * row_sigmoid(x) * to_float(u[i]));
    });
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
    const Activation* g = gate + token * width;
    const Activation* u = up + token * width;
    const Activation* grad = dh + token * width;
    Activation* out_gate = dgate + token * width;
    Activation* out_up = dup + token * width;
    team.each(width, [&](int64_t i) {
      const float x = to_float(g[i]);
      const float sigmoid = row_sigmoid(x);
      const float d = to_float(grad[i]);
      out_up[i] = from_float<Activation>(d * x * sigmoid);
      out_gate[i] =
          from_float<Activation>(d * to_float(u[i]) * sigmoid * (1.0f + x * (1.0f - sigmoid)));
    });
  }
};
using SwigluBackwardF32 = SwigluBackward<float>;
using SwigluBackwardBf16 = SwigluBackward<bf16>;
JACKSCREW_ROW_KERNEL(SwigluBackwardF32)
JACKSCREW_ROW_KERNEL(SwigluBackwardBf16)

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

// to[indices[row]] += from[row] where indices may repeat. A row of the kernel is a block of
// columns.
struct ScatterAddRows {
  const float* from;       // [rows, width]
  const int32_t* indices;  // [rows]
  float* to;               // [?, width]
  int64_t rows, width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t block) const {
    const Columns columns = columns_of_block(block, width);
    for (int64_t row = 0; row < rows; ++row) {
      const float* in = from + row * width + columns.begin;
      float* out = to + indices[row] * width + columns.begin;
      team.each(columns.count, [&](int64_t i) { out[i] += in[i]; });
    }
  }
};
JACKSCREW_ROW_KERNEL(ScatterAddRows)

}  // namespace jackscrew
