// FlashAttention-2 on a CPU: small products held in vector registers around an online softmax.
#include "kernels/cpu/attention.h"

#include "kernels/cpu/dot.h"
#include "kernels/row_math.h"

namespace jackscrew::JACKSCREW_ISA {

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRows =
    8;  // 8 x 2 accumulators + 2 operands of 32 registers: hides 4 cycles at 2 per cycle
#else
constexpr int kLanes = 8;
constexpr int kRows = 6;  // 6 x 2 accumulators + 2 operands + 1 broadcast of 16 registers
#endif
constexpr int64_t kPad = kAttentionPad;

typedef float Vector __attribute__((vector_size(kLanes * 4), aligned(4)));

JACKSCREW_INLINE int64_t padded(int64_t n) {
  return (n + kPad - 1) / kPad * kPad;
}
JACKSCREW_INLINE int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// The stride of packed transposed keys: one cache line past a multiple, so that the rows of a tile
// do not all fall into the same cache sets when the number of tokens is a power of two.
JACKSCREW_INLINE int64_t key_stride(int64_t tokens) {
  return padded(tokens) + kPad;
}

// c [M, columns] (+)= a [M, depth] · b [depth, columns] for M rows and V vectors of columns, held
// in registers. Element (i, k) of a is a[i * a_row + k * a_depth], so that a may be transposed.
template <int M, int V>
JACKSCREW_INLINE void micro_product(int64_t depth, const float* a, int64_t a_row, int64_t a_depth,
                                    const float* b, int64_t b_stride, float* c, int64_t c_stride,
                                    bool accumulate) {
  Vector sum[M][V];
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < V; ++j) {
      sum[i][j] =
          accumulate ? *reinterpret_cast<const Vector*>(c + i * c_stride + j * kLanes) : Vector{};
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vector row[V];
    for (int j = 0; j < V; ++j) {
      row[j] = *reinterpret_cast<const Vector*>(b + k * b_stride + j * kLanes);
    }
    for (int i = 0; i < M; ++i) {
      const float factor = a[i * a_row + k * a_depth];
      for (int j = 0; j < V; ++j) sum[i][j] += factor * row[j];
    }
  }
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < V; ++j) {
      *reinterpret_cast<Vector*>(c + i * c_stride + j * kLanes) = sum[i][j];
    }
  }
}

template <int V>
JACKSCREW_INLINE void product_columns(int64_t rows, int64_t depth, const float* a, int64_t a_row,
                                      int64_t a_depth, const float* b, int64_t b_stride, float* c,
                                      int64_t c_stride, bool accumulate) {
  int64_t i = 0;
  for (; i + kRows <= rows; i += kRows) {
    micro_product<kRows, V>(depth, a + i * a_row, a_row, a_depth, b, b_stride, c + i * c_stride,
                            c_stride, accumulate);
  }
  for (; i + 2 <= rows; i += 2) {
    micro_product<2, V>(depth, a + i * a_row, a_row, a_depth, b, b_stride, c + i * c_stride,
                        c_stride, accumulate);
  }
  for (; i < rows; ++i) {
    micro_product<1, V>(depth, a + i * a_row, a_row, a_depth, b, b_stride, c + i * c_stride,
                        c_stride, accumulate);
  }
}

// c [rows, columns] (+)= a · b; `columns` is rounded up to kPad, and b and c have room for that.
void product(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_row,
             int64_t a_depth, const float* b, int64_t b_stride, float* c, int64_t c_stride,
             bool accumulate) {
  const int64_t end = padded(columns);
  int64_t n = 0;
  for (; n + 2 * kLanes <= end; n += 2 * kLanes) {
    product_columns<2>(rows, depth, a, a_row, a_depth, b + n, b_stride, c + n, c_stride,
                       accumulate);
  }
  for (; n < end; n += kLanes) {
    product_columns<1>(rows, depth, a, a_row, a_depth, b + n, b_stride, c + n, c_stride,
                       accumulate);
  }
}

// to [rows, padded(columns)] = factor * from, the padding zero.
void copy_padded(int64_t rows, int64_t columns, const float* from, int64_t from_stride,
                 float factor, float* to) {
  const int64_t stride = padded(columns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[r * stride + c] = factor * from[r * from_stride + c];
    for (int64_t c = columns; c < stride; ++c) to[r * stride + c] = 0.0f;
  }
}

// to [columns, stride] = fromᵀ for from [rows, columns]; the padding zero.
void copy_transposed(int64_t rows, int64_t columns, const float* from, int64_t from_stride,
                     float* to, int64_t stride) {
  for (int64_t r0 = 0; r0 < rows; r0 += kPad) {
    const int64_t r1 = smaller(rows, r0 + kPad);
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = r0; r < r1; ++r) to[c * stride + r] = from[r * from_stride + c];
    }
  }
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = rows; r < stride; ++r) to[c * stride + r] = 0.0f;
  }
}

// Where the parts of a kv head's packed scratch lie.
struct Packed {
  float* keys_transposed;  // [head_dim, key_stride]
  float* second;           // forward: values [tokens, padded]; backward: values transposed
  float* keys;             // backward: [tokens, padded]
};

JACKSCREW_INLINE Packed packed_forward(const CpuAttention& args, int64_t kv_head) {
  float* base = args.packed + kv_head * attention_forward_packed(args.tokens_k, args.head_dim);
  return {base, base + args.head_dim * key_stride(args.tokens_k), nullptr};
}

JACKSCREW_INLINE Packed packed_backward(const CpuAttention& args, int64_t kv_head) {
  float* base = args.packed + kv_head * attention_backward_packed(args.tokens_k, args.head_dim);
  const int64_t transposed = args.head_dim * key_stride(args.tokens_k);
  return {base, base + transposed, base + 2 * transposed};
}

void pack_forward(const CpuAttention& args, int64_t kv_head) {
  const Packed to = packed_forward(args, kv_head);
  const int64_t d = args.head_dim;
  copy_transposed(args.tokens_k, d, args.k + kv_head * d, args.k_stride, to.keys_transposed,
                  key_stride(args.tokens_k));
  copy_padded(args.tokens_k, d, args.v + kv_head * d, args.v_stride, 1.0f, to.second);
}

void pack_backward(const CpuAttention& args, int64_t kv_head) {
  const Packed to = packed_backward(args, kv_head);
  const int64_t d = args.head_dim;
  const int64_t stride = key_stride(args.tokens_k);
  copy_transposed(args.tokens_k, d, args.k + kv_head * d, args.k_stride, to.keys_transposed,
                  stride);
  copy_transposed(args.tokens_k, d, args.v + kv_head * d, args.v_stride, to.second, stride);
  copy_padded(args.tokens_k, d, args.k + kv_head * d, args.k_stride, 1.0f, to.keys);
}

// The keys that the query at `position` sees in the tile of `width` keys from k0 on.
struct Visible {
  int64_t begin, end;  // columns of the tile; empty where end <= begin
};
JACKSCREW_INLINE Visible visible_keys(const CpuAttention& args, int64_t position, int64_t k0,
                                      int64_t width) {
  const int64_t end = position + 1 - k0;
  const int64_t begin = args.window == 0 || end <= args.window ? 0 : end - args.window;
  return {smaller(begin, width), end < 0 ? 0 : smaller(width, end)};
}

// The first key of the first tile that the query at `position` sees.
JACKSCREW_INLINE int64_t first_tile(const CpuAttention& args, int64_t position) {
  const int64_t hidden = args.window == 0 ? 0 : position + 1 - args.window;
  return hidden <= 0 ? 0 : hidden / kAttentionKeyBlock * kAttentionKeyBlock;
}

// One step of the online softmax of a row: turns the visible scores into weights relative to the
// new maximum, zeroes the rest of the tile, and returns the factor by which older sums shrink.
JACKSCREW_INLINE float softmax_step(float* scores, Visible visible, int64_t width, float& maximum,
                                    float& total) {
  float best = maximum;
#pragma omp simd reduction(max : best)
  for (int64_t j = visible.begin; j < visible.end; ++j) best = scores[j] > best ? scores[j] : best;
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = visible.begin; j < visible.end; ++j) {
    const float weight = row_exp(scores[j] - best);
    scores[j] = weight;
    sum += weight;
  }
  for (int64_t j = 0; j < visible.begin; ++j) scores[j] = 0.0f;
  for (int64_t j = visible.end; j < width; ++j) scores[j] = 0.0f;
  const float shrink = row_exp(maximum - best);
  total = total * shrink + sum;
  maximum = best;
  return shrink;
}

// Rows of queries that attend to the same keys, in the scratch of a thread.
struct QueryRows {
  float* query;    // [kBq, padded head_dim], times the scale
  float* scores;   // [kBq, kBk]
  float* sum;      // [kBq, padded head_dim]
  float* maximum;  // [kBq]
  float* total;    // [kBq]

  QueryRows(const CpuAttention& args, float* thread_scratch) {
    const int64_t dp = padded(args.head_dim);
    query = thread_scratch;
    scores = query + kAttentionQueryBlock * dp;
    sum = scores + kAttentionQueryBlock * kAttentionKeyBlock;
    maximum = sum + kAttentionQueryBlock * dp;
    total = maximum + kAttentionQueryBlock;
  }
};

// Online softmax of `rows` queries over keys in tiles, for row i at position first_position + i *
// step among them: afterwards `sum` holds the sums of values and `total` those of the weights.
// multiply_keys(k0, width) writes the scores of keys [k0, k0 + width); the values are [keys,
// values_stride], their columns padded to kPad.
template <class MultiplyKeys>
JACKSCREW_INLINE void attend(const CpuAttention& args, const QueryRows& at, int64_t rows,
                             int64_t first_position, int64_t step, const float* values,
                             int64_t values_stride, const MultiplyKeys& multiply_keys) {
  constexpr int64_t kBk = kAttentionKeyBlock;
  const int64_t dp = padded(args.head_dim);
  for (int64_t i = 0; i < rows * dp; ++i) at.sum[i] = 0.0f;
  for (int64_t i = 0; i < rows; ++i) {
    at.maximum[i] = -3.0e38f;
    at.total[i] = 0.0f;
  }
  const int64_t last_position = first_position + (rows - 1) * step;
  for (int64_t k0 = first_tile(args, first_position); k0 <= last_position; k0 += kBk) {
    const int64_t width = smaller(kBk, last_position + 1 - k0);
    multiply_keys(k0, width);
    for (int64_t i = 0; i < rows; ++i) {
      const Visible visible = visible_keys(args, first_position + i * step, k0, width);
      const float shrink =
          softmax_step(at.scores + i * kBk, visible, width, at.maximum[i], at.total[i]);
      if (shrink != 1.0f) {
        for (int64_t c = 0; c < dp; ++c) at.sum[i * dp + c] *= shrink;
      }
    }
    product(rows, dp, width, at.scores, kBk, 1, values + k0 * values_stride, values_stride, at.sum,
            dp, true);
  }
}

// Writes what attend() has left in row i: of query `token`, head `head`.
JACKSCREW_INLINE void write_row(const CpuAttention& args, const QueryRows& at, int64_t i,
                                int64_t token, int64_t head) {
  const int64_t d = args.head_dim;
  const float inverse = 1.0f / at.total[i];
  float* out = args.out + token * args.out_stride + head * d;
  for (int64_t c = 0; c < d; ++c) out[c] = at.sum[i * padded(d) + c] * inverse;
  args.lse[head * args.tokens_q + token] = at.maximum[i] + __builtin_logf(at.total[i]);
}

void forward(const CpuAttention& args, int64_t sequence, int64_t head, int64_t block,
             float* thread_scratch) {
  constexpr int64_t kBq = kAttentionQueryBlock;
  const int64_t d = args.head_dim;
  const int64_t dp = padded(d);
  const int64_t q_begin = args.cu_seqlens_q[sequence];
  const int64_t q_length = args.cu_seqlens_q[sequence + 1] - q_begin;
  const int64_t k_begin = args.cu_seqlens_k[sequence];
  const int64_t k_length = args.cu_seqlens_k[sequence + 1] - k_begin;
  const int64_t first = block * kBq;  // query index within the sequence
  const int64_t rows = smaller(kBq, q_length - first);
  const int64_t first_position = first + k_length - q_length;  // its position among the keys
  const Packed packed = packed_forward(args, head / (args.num_heads / args.num_kv_heads));
  const int64_t keys_stride = key_stride(args.tokens_k);

  const QueryRows at(args, thread_scratch);
  copy_padded(rows, d, args.q + (q_begin + first) * args.q_stride + head * d, args.q_stride,
              args.scale, at.query);
  attend(args, at, rows, first_position, 1, packed.second + k_begin * dp, dp,
         [&](int64_t k0, int64_t width) {
           product(rows, width, d, at.query, dp, 1, packed.keys_transposed + k_begin + k0,
                   keys_stride, at.scores, kAttentionKeyBlock, false);
         });
  for (int64_t i = 0; i < rows; ++i) write_row(args, at, i, q_begin + first + i, head);
}

void forward_single(const CpuAttention& args, int64_t kv_head, float* thread_scratch) {
  const int64_t d = args.head_dim;
  const int64_t group = args.num_heads / args.num_kv_heads;
  const int64_t k_begin = args.cu_seqlens_k[0];
  const int64_t position = args.cu_seqlens_k[1] - k_begin - 1;
  const float* keys = args.k + k_begin * args.k_stride + kv_head * d;
  const float* values = args.v + k_begin * args.v_stride + kv_head * d;
  const QueryRows at(args, thread_scratch);
  for (int64_t first = 0; first < group; first += kDotRows) {
    const int64_t rows = smaller(kDotRows, group - first);
    const int64_t head = kv_head * group + first;
    copy_padded(rows, d, args.q + head * d, d, args.scale, at.query);
    attend(args, at, rows, position, 0, values, args.v_stride, [&](int64_t k0, int64_t width) {
      kDotKernels.f32({.a = at.query,
                       .b = keys + k0 * args.k_stride,
                       .c = at.scores,
                       .m = rows,
                       .k = d,
                       .a_stride = d,
                       .b_stride = args.k_stride,
                       .c_stride = kAttentionKeyBlock,
                       .accumulate = false},
                      0, width);
    });
    for (int64_t i = 0; i < rows; ++i) write_row(args, at, i, 0, head + i);
  }
}

void backward(const CpuAttention& args, int64_t sequence, int64_t head, float* thread_scratch) {
  constexpr int64_t kBq = kAttentionQueryBlock;
  constexpr int64_t kBk = kAttentionKeyBlock;
  const int64_t d = args.head_dim;
  const int64_t dp = padded(d);
  const int64_t begin = args.cu_seqlens_q[sequence];
  const int64_t length = args.cu_seqlens_q[sequence + 1] - begin;
  const Packed packed = packed_backward(args, head / (args.num_heads / args.num_kv_heads));
  const int64_t keys_stride = key_stride(args.tokens_k);
  const int64_t head_size = args.tokens_k * dp;
  float* dk = args.dkv_heads + head * head_size + begin * dp;                     // [length, dp]
  float* dv = args.dkv_heads + (args.num_heads + head) * head_size + begin * dp;  // [length, dp]

  float* scores = thread_scratch;       // [kBq, kBk]; becomes the softmax weights
  float* dscores = scores + kBq * kBk;  // [kBq, kBk]
  float* delta = dscores + kBq * kBk;   // [length], row sums of dout * out (Dao 2023, section 3.1)
  float* query = delta + padded(length);  // [length, dp], scaled
  float* dout = query + length * dp;      // [length, dp]
  float* dquery = dout + length * dp;     // [length, dp]

  copy_padded(length, d, args.q + begin * args.q_stride + head * d, args.q_stride, args.scale,
              query);
  copy_padded(length, d, args.dout + begin * args.dout_stride + head * d, args.dout_stride, 1.0f,
              dout);
  for (int64_t i = 0; i < length; ++i) {
    const float* out = args.out + (begin + i) * args.out_stride + head * d;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < d; ++c) sum += out[c] * dout[i * dp + c];
    delta[i] = sum;
  }
  for (int64_t i = 0; i < length * dp; ++i) dquery[i] = 0.0f;

  const float* lse = args.lse + head * args.tokens_q + begin;
  for (int64_t k0 = 0; k0 < length; k0 += kBk) {
    const int64_t width = smaller(kBk, length - k0);
    for (int64_t i = k0 * dp; i < (k0 + width) * dp; ++i) dk[i] = dv[i] = 0.0f;
    // Queries past the window of the tile's last key see none of its keys.
    const int64_t q_end = args.window == 0 ? length : smaller(length, k0 + width - 1 + args.window);
    for (int64_t q0 = k0 / kBq * kBq; q0 < q_end; q0 += kBq) {
      const int64_t rows = smaller(kBq, length - q0);
      product(rows, width, d, query + q0 * dp, dp, 1, packed.keys_transposed + begin + k0,
              keys_stride, scores, kBk, false);
      product(rows, width, d, dout + q0 * dp, dp, 1, packed.second + begin + k0, keys_stride,
              dscores, kBk, false);
      for (int64_t i = 0; i < rows; ++i) {
        const Visible visible = visible_keys(args, q0 + i, k0, width);
        const float offset = lse[q0 + i];
        const float row_delta = delta[q0 + i];
        float* weights = scores + i * kBk;
        float* grads = dscores + i * kBk;
#pragma omp simd
        for (int64_t j = visible.begin; j < visible.end; ++j) {
          weights[j] = row_exp(weights[j] - offset);
          grads[j] = weights[j] * (grads[j] - row_delta);
        }
        for (int64_t j = 0; j < visible.begin; ++j) weights[j] = grads[j] = 0.0f;
        for (int64_t j = visible.end; j < width; ++j) weights[j] = grads[j] = 0.0f;
      }
      product(width, dp, rows, scores, 1, kBk, dout + q0 * dp, dp, dv + k0 * dp, dp, true);
      product(width, dp, rows, dscores, 1, kBk, query + q0 * dp, dp, dk + k0 * dp, dp, true);
      product(rows, dp, width, dscores, kBk, 1, packed.keys + (begin + k0) * dp, dp,
              dquery + q0 * dp, dp, true);
    }
  }
  for (int64_t i = 0; i < length; ++i) {
    float* dq = args.dq + (begin + i) * args.dq_stride + head * d;
    for (int64_t c = 0; c < d; ++c) dq[c] = args.scale * dquery[i * dp + c];
  }
}

void reduce_heads(const CpuAttention& args, int64_t begin, int64_t end) {
  const int64_t d = args.head_dim;
  const int64_t dp = padded(d);
  const int64_t group = args.num_heads / args.num_kv_heads;
  const int64_t head_size = args.tokens_k * dp;
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t kv_head = 0; kv_head < args.num_kv_heads; ++kv_head) {
      float* dk = args.dk + token * args.dk_stride + kv_head * d;
      float* dv = args.dv + token * args.dv_stride + kv_head * d;
      const float* from = args.dkv_heads + kv_head * group * head_size + token * dp;
      const float* from_v = from + args.num_heads * head_size;
      for (int64_t c = 0; c < d; ++c) {
        float sum_k = 0.0f;
        float sum_v = 0.0f;
        for (int64_t h = 0; h < group; ++h) {
          sum_k += from[h * head_size + c];
          sum_v += from_v[h * head_size + c];
        }
        dk[c] = sum_k;
        dv[c] = sum_v;
      }
    }
  }
}

}  // namespace

extern const AttentionKernels kAttentionKernels;
const AttentionKernels kAttentionKernels{pack_forward,   pack_backward, forward,
                                         forward_single, backward,      reduce_heads};

}  // namespace jackscrew::JACKSCREW_ISA
