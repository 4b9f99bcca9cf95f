// Attention on tensor cores. A warp has 16 rows of its block's tile, the height of a tensor core's
// product. Operands are rounded to bf16; sums and softmax are f32. Sums are taken in an order that
// the shapes fix, and no two blocks write to one place: results repeat bit for bit.
#include "kernels/cuda/attention_bf16.h"

#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/row_math.h"

namespace jackscrew::cuda {

namespace {

constexpr int kRows = 16;  // of a warp
constexpr int kWarps = 4;
constexpr int kTile = kRows * kWarps;
constexpr int kThreads = kWarps * kWarp;
constexpr float kLog2E = 1.44269504f;  // exponentials are powers of 2, which the hardware has
constexpr float kLn2 = 0.693147181f;
constexpr float kUnseen = -__builtin_huge_valf();  // a score whose weight is 0

// Sizes for heads of up to kHeadDim elements; those beyond the head are 0.
template <int kHeadDim>
struct Sizes {
  // Elements from row to row of a tile in shared memory, 16 bytes more than a row: 16 bytes of each
  // of eight rows fall into different banks.
  static constexpr int kPitch = kHeadDim + 8;
  // Rows of the tiles that a block goes through: few enough that a thread's share of all sums fits
  // into its registers, and the tiles into the 99 KiB that every GPU since Ampere has.
  static constexpr int kKeysForward = 64;
  static constexpr int kKeysBackward = 32;
  static constexpr int kQueriesBackward = kHeadDim > 128 ? 16 : 32;
  // Elements of a row of dk and dv that a block sums; there is a block for each part.
  static constexpr int kPart = kHeadDim > 128 ? 128 : kHeadDim;
  static constexpr int kParts = kHeadDim / kPart;
};

// A thread's share of a product's result, a fragment for every 8 columns. Element i of a fragment
// is in row row_of(i) of the warp's rows and column column_of(i) of the fragment.
template <int kColumns>
using Fragments = float[kColumns / 8][4];

__device__ int lane() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ int warp_row() {
  return static_cast<int>(threadIdx.x) / kWarp * kRows;
}
__device__ int row_of(int i) {
  return lane() / 4 + i / 2 * 8;
}
__device__ int column_of(int i) {
  return lane() % 4 * 2 + i % 2;
}

// Reductions over the four threads that share a row.
__device__ float row_total(float value) {
  value += __shfl_xor_sync(0xFFFFFFFFu, value, 1);
  return value + __shfl_xor_sync(0xFFFFFFFFu, value, 2);
}
__device__ float row_largest(float value) {
  value = row_max(value, __shfl_xor_sync(0xFFFFFFFFu, value, 1));
  return row_max(value, __shfl_xor_sync(0xFFFFFFFFu, value, 2));
}

// Two elements as one word of bf16, `low` in the low half.
__device__ uint32_t pack(float low, float high) {
  return pack_bf16(low, high);
}
__device__ uint32_t pack(bf16 low, bf16 high) {
  return low.bits | static_cast<uint32_t>(high.bits) << 16;
}

// A thread's widest load, and the same elements as bf16.
template <class Element>
struct alignas(16) Piece {
  static constexpr int kElements = 16 / sizeof(Element);
  Element values[kElements];
};
template <int kElements>
struct alignas(2 * kElements) Packed {
  uint32_t words[kElements / 2];
};

// A head's rows in memory.
template <class Element>
struct Head {
  const Element* first;  // of the sequence's first row
  int64_t stride;
  int64_t rows;
  int dim;

  __device__ bool is_aligned() const {
    const auto address =
        reinterpret_cast<uintptr_t>(first) | static_cast<uintptr_t>(stride) * sizeof(Element);
    return address % sizeof(Piece<Element>) == 0;
  }
};

// Loads rows [begin, begin + kCount) of a head into shared memory as bf16; zeros beyond the head.
template <int kHeadDim, int kCount, class Element>
__device__ void load(const Head<Element>& head, int64_t begin, uint16_t* tile) {
  constexpr int kElements = Piece<Element>::kElements;
  constexpr int kPieces = kHeadDim / kElements;
  const bool aligned = head.is_aligned();
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kCount * kPieces; i += kThreads) {
    const int row = i / kPieces;
    const int column = i % kPieces * kElements;
    const int there = begin + row < head.rows ? head.dim - column : 0;
    const Element* from = head.first + (begin + row) * head.stride + column;
    Piece<Element> piece{};
    if (aligned && there >= kElements) {
      piece = *reinterpret_cast<const Piece<Element>*>(from);
    } else {
      for (int e = 0; e < kElements && e < there; ++e) piece.values[e] = from[e];
    }
    Packed<kElements> packed;
#pragma unroll
    for (int w = 0; w < kElements / 2; ++w) {
      packed.words[w] = pack(piece.values[2 * w], piece.values[2 * w + 1]);
    }
    *reinterpret_cast<Packed<kElements>*>(tile + row * Sizes<kHeadDim>::kPitch + column) = packed;
  }
}

// sums = the warp's rows of tile `left` times the transposed rows of tile `right`.
template <int kHeadDim, int kOther>
__device__ void multiply_rows(const uint16_t* left, const uint16_t* right,
                              Fragments<kOther>& sums) {
  constexpr int kPitch = Sizes<kHeadDim>::kPitch;
  const uint16_t* a_row = left + (warp_row() + lane() % 16) * kPitch + lane() / 16 * 8;
  const uint16_t* b_row = right + (lane() / 16 * 8 + lane() % 8) * kPitch + lane() / 8 % 2 * 8;
#pragma unroll
  for (int n = 0; n < kOther / 8; ++n) {
    for (int i = 0; i < 4; ++i) sums[n][i] = 0.0f;
  }
#pragma unroll
  for (int depth = 0; depth < kHeadDim; depth += 16) {
    uint32_t a[4];
    load_matrices(a, a_row + depth);
#pragma unroll
    for (int n = 0; n < kOther; n += 16) {
      uint32_t b[4];
      load_matrices(b, b_row + n * kPitch + depth);
      mma_bf16(sums[n / 8], a, b[0], b[1]);
      mma_bf16(sums[n / 8 + 1], a, b[2], b[3]);
    }
  }
}

// sums += weights times kColumns columns of a tile. The fragments of a result, once rounded, are
// those of a left operand.
template <int kHeadDim, int kOther, int kColumns>
__device__ void add_weighted(const Fragments<kOther>& weights, const uint16_t* columns,
                             Fragments<kColumns>& sums) {
  constexpr int kPitch = Sizes<kHeadDim>::kPitch;
  const uint16_t* b_row = columns + lane() % 16 * kPitch + lane() / 16 * 8;
#pragma unroll
  for (int depth = 0; depth < kOther; depth += 16) {
    const float(&low)[4] = weights[depth / 8];
    const float(&high)[4] = weights[depth / 8 + 1];
    const uint32_t a[4] = {pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]),
                           pack_bf16(high[0], high[1]), pack_bf16(high[2], high[3])};
#pragma unroll
    for (int n = 0; n < kColumns; n += 16) {
      uint32_t b[4];
      load_matrices_transposed(b, b_row + depth * kPitch + n);
      mma_bf16(sums[n / 8], a, b[0], b[1]);
      mma_bf16(sums[n / 8 + 1], a, b[2], b[3]);
    }
  }
}

// Stores the warp's rows. `head` is the head in the tile's first row; the tile has `rows` rows.
template <int kColumns, class Element>
__device__ void store(const Fragments<kColumns>& sums, Element* head, int64_t stride, int64_t rows,
                      int64_t columns) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = warp_row() + row_of(i);
      const int64_t column = n * 8 + column_of(i);
      if (row < rows && column < columns) {
        head[row * stride + column] = from_float<Element>(sums[n][i]);
      }
    }
  }
}

// The heads of a sequence.
template <class Element>
struct Heads {
  const Attention<Element>& args;
  const Sequence& sequence;

  __device__ Head<Element> of_queries(const Element* data, int64_t stride, int64_t head) const {
    return {data + sequence.first_q * stride + head * args.head_dim, stride, sequence.length_q,
            static_cast<int>(args.head_dim)};
  }
  __device__ Head<Element> of_keys(const Element* data, int64_t stride, int64_t head) const {
    return {data + sequence.first_k * stride + head * args.head_dim, stride, sequence.length_k,
            static_cast<int>(args.head_dim)};
  }
  __device__ auto q(int64_t head) const { return of_queries(args.q, args.q_stride, head); }
  __device__ auto dout(int64_t head) const { return of_queries(args.dout, args.dout_stride, head); }
  __device__ auto k(int64_t head) const { return of_keys(args.k, args.k_stride, head); }
  __device__ auto v(int64_t head) const { return of_keys(args.v, args.v_stride, head); }
};

// One block per tile of queries and head.
template <int kHeadDim, class Element>
__global__ void __launch_bounds__(kThreads) forward(const Attention<Element> args) {
  constexpr int kKeys = Sizes<kHeadDim>::kKeysForward;
  constexpr int kPitch = Sizes<kHeadDim>::kPitch;
  const TilePosition place = find_tile<kTile>(args.cu_seqlens_q, args.sequences, blockIdx.x);
  if (place.sequence < 0) return;
  const Sequence sequence(args, place.sequence);
  const Heads<Element> heads{args, sequence};
  const int64_t head = blockIdx.y;
  const int64_t kv_head = head / (args.num_heads / args.num_kv_heads);
  uint16_t* q_tile = dynamic_halves();         // [kTile, kPitch]
  uint16_t* k_tile = q_tile + kTile * kPitch;  // [kKeys, kPitch]
  uint16_t* v_tile = k_tile + kKeys * kPitch;  // [kKeys, kPitch]
  load<kHeadDim, kTile>(heads.q(head), place.first, q_tile);
  const float scale = args.scale * kLog2E;
  const int64_t keys = sequence.end_of_keys(place.first, kTile);
  float largest[2] = {kLowestScore, kLowestScore};  // of the thread's two rows
  float total[2] = {};                              // of the thread's columns
  Fragments<kHeadDim> out = {};
  for (int64_t begin = sequence.first_keys(place.first, kKeys); begin < keys; begin += kKeys) {
    __syncthreads();
    load<kHeadDim, kKeys>(heads.k(kv_head), begin, k_tile);
    load<kHeadDim, kKeys>(heads.v(kv_head), begin, v_tile);
    __syncthreads();
    Fragments<kKeys> scores;
    multiply_rows<kHeadDim, kKeys>(q_tile, k_tile, scores);
    const bool all_see = sequence.all_see(place.first, kTile, begin, kKeys);
    float now[2] = {largest[0], largest[1]};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t query = place.first + warp_row() + row_of(i);
        const bool sees = all_see || sequence.sees(query, begin + n * 8 + column_of(i));
        scores[n][i] = sees ? scale * scores[n][i] : kUnseen;
        now[i / 2] = row_max(now[i / 2], scores[n][i]);
      }
    }
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      now[r] = row_largest(now[r]);
      shrink[r] = exp2_approximate(largest[r] - now[r]);
      largest[r] = now[r];
      total[r] *= shrink[r];
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = exp2_approximate(scores[n][i] - now[i / 2]);
        total[i / 2] += scores[n][i];
      }
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] *= shrink[i / 2];
    }
    add_weighted<kHeadDim, kKeys, kHeadDim>(scores, v_tile, out);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) total[r] = row_total(total[r]);
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[n][i] /= total[i / 2];
  }
  const int64_t token = sequence.first_q + place.first;
  const int64_t rows = sequence.length_q - place.first;
  store<kHeadDim>(out, args.out + token * args.out_stride + head * args.head_dim, args.out_stride,
                  rows, args.head_dim);
  for (int r = 0; r < 2; ++r) {
    const int64_t row = warp_row() + row_of(2 * r);
    if (lane() % 4 != 0 || row >= rows) continue;
    args.lse[head * args.tokens_q + token + row] = kLn2 * largest[r] + logf(total[r]);
  }
}

// One block per tile of keys, kv head and part of its elements: sums dk and dv over all queries, of
// all heads that share it.
template <int kHeadDim, class Element>
__global__ void __launch_bounds__(kThreads) backward_keys(const Attention<Element> args) {
  constexpr int kQueries = Sizes<kHeadDim>::kQueriesBackward;
  constexpr int kPart = Sizes<kHeadDim>::kPart;
  constexpr int kPitch = Sizes<kHeadDim>::kPitch;
  const TilePosition place = find_tile<kTile>(args.cu_seqlens_k, args.sequences, blockIdx.x);
  if (place.sequence < 0) return;
  const Sequence sequence(args, place.sequence);
  const Heads<Element> heads{args, sequence};
  const int64_t kv_head = blockIdx.y / Sizes<kHeadDim>::kParts;
  const int64_t part = blockIdx.y % Sizes<kHeadDim>::kParts * kPart;
  const int64_t sharing = args.num_heads / args.num_kv_heads;
  uint16_t* k_tile = dynamic_halves();               // [kTile, kPitch]
  uint16_t* v_tile = k_tile + kTile * kPitch;        // [kTile, kPitch]
  uint16_t* q_tile = v_tile + kTile * kPitch;        // [kQueries, kPitch]
  uint16_t* dout_tile = q_tile + kQueries * kPitch;  // [kQueries, kPitch]
  load<kHeadDim, kTile>(heads.k(kv_head), place.first, k_tile);
  load<kHeadDim, kTile>(heads.v(kv_head), place.first, v_tile);
  const float scale = args.scale * kLog2E;
  const int64_t queries = sequence.end_of_queries(place.first, kTile);
  Fragments<kPart> dk = {};
  Fragments<kPart> dv = {};
  for (int64_t head = kv_head * sharing; head < (kv_head + 1) * sharing; ++head) {
    const float* lse = args.lse + head * args.tokens_q + sequence.first_q;
    const float* delta = args.delta + head * args.tokens_q + sequence.first_q;
    for (int64_t begin = place.first; begin < queries; begin += kQueries) {
      __syncthreads();
      load<kHeadDim, kQueries>(heads.q(head), begin, q_tile);
      load<kHeadDim, kQueries>(heads.dout(head), begin, dout_tile);
      __syncthreads();
      Fragments<kQueries> weights;  // [keys, queries]
      Fragments<kQueries> dscores;
      multiply_rows<kHeadDim, kQueries>(k_tile, q_tile, weights);
      multiply_rows<kHeadDim, kQueries>(v_tile, dout_tile, dscores);
      const bool all_see = sequence.all_see(begin, kQueries, place.first, kTile);
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int64_t query = begin + n * 8 + column_of(i);
          const int64_t key = place.first + warp_row() + row_of(i);
          float weight = 0.0f;
          float dscore = 0.0f;
          if (all_see || sequence.sees(query, key)) {
            weight = exp2_approximate(scale * weights[n][i] - kLog2E * lse[query]);
            dscore = args.scale * weight * (dscores[n][i] - delta[query]);
          }
          weights[n][i] = weight;
          dscores[n][i] = dscore;
        }
      }
      add_weighted<kHeadDim, kQueries, kPart>(weights, dout_tile + part, dv);
      add_weighted<kHeadDim, kQueries, kPart>(dscores, q_tile + part, dk);
    }
  }
  const int64_t token = sequence.first_k + place.first;
  const int64_t rows = sequence.length_k - place.first;
  const int64_t at = kv_head * args.head_dim + part;
  store<kPart>(dk, args.dk + token * args.dk_stride + at, args.dk_stride, rows,
               args.head_dim - part);
  store<kPart>(dv, args.dv + token * args.dv_stride + at, args.dv_stride, rows,
               args.head_dim - part);
}

// One block per tile of queries and head: sums dq.
template <int kHeadDim, class Element>
__global__ void __launch_bounds__(kThreads) backward_queries(const Attention<Element> args) {
  constexpr int kKeys = Sizes<kHeadDim>::kKeysBackward;
  constexpr int kPitch = Sizes<kHeadDim>::kPitch;
  const TilePosition place = find_tile<kTile>(args.cu_seqlens_q, args.sequences, blockIdx.x);
  if (place.sequence < 0) return;
  const Sequence sequence(args, place.sequence);
  const Heads<Element> heads{args, sequence};
  const int64_t head = blockIdx.y;
  const int64_t kv_head = head / (args.num_heads / args.num_kv_heads);
  uint16_t* q_tile = dynamic_halves();            // [kTile, kPitch]
  uint16_t* dout_tile = q_tile + kTile * kPitch;  // [kTile, kPitch]
  uint16_t* k_tile = dout_tile + kTile * kPitch;  // [kKeys, kPitch]
  uint16_t* v_tile = k_tile + kKeys * kPitch;     // [kKeys, kPitch]
  load<kHeadDim, kTile>(heads.q(head), place.first, q_tile);
  load<kHeadDim, kTile>(heads.dout(head), place.first, dout_tile);
  const float scale = args.scale * kLog2E;
  float lse[2] = {};  // of the thread's two rows, for powers of 2
  float delta[2] = {};
  for (int r = 0; r < 2; ++r) {
    const int64_t query = place.first + warp_row() + row_of(2 * r);
    if (query >= sequence.length_q) continue;
    const int64_t at = head * args.tokens_q + sequence.first_q + query;
    lse[r] = kLog2E * args.lse[at];
    delta[r] = args.delta[at];
  }
  const int64_t keys = sequence.end_of_keys(place.first, kTile);
  Fragments<kHeadDim> dq = {};
  for (int64_t begin = sequence.first_keys(place.first, kKeys); begin < keys; begin += kKeys) {
    __syncthreads();
    load<kHeadDim, kKeys>(heads.k(kv_head), begin, k_tile);
    load<kHeadDim, kKeys>(heads.v(kv_head), begin, v_tile);
    __syncthreads();
    Fragments<kKeys> scores;
    Fragments<kKeys> dscores;
    multiply_rows<kHeadDim, kKeys>(q_tile, k_tile, scores);
    multiply_rows<kHeadDim, kKeys>(dout_tile, v_tile, dscores);
    const bool all_see = sequence.all_see(place.first, kTile, begin, kKeys);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t query = place.first + warp_row() + row_of(i);
        const bool sees = all_see || sequence.sees(query, begin + n * 8 + column_of(i));
        const float weight = sees ? exp2_approximate(scale * scores[n][i] - lse[i / 2]) : 0.0f;
        dscores[n][i] = sees ? args.scale * weight * (dscores[n][i] - delta[i / 2]) : 0.0f;
      }
    }
    add_weighted<kHeadDim, kKeys, kHeadDim>(dscores, k_tile, dq);
  }
  const int64_t token = sequence.first_q + place.first;
  store<kHeadDim>(dq, args.dq + token * args.dq_stride + head * args.head_dim, args.dq_stride,
                  sequence.length_q - place.first, args.head_dim);
}

template <class Element>
struct Kernels {
  using Kernel = void (*)(Attention<Element>);
  Kernel forward, keys, queries;
  int parts;
};

template <int kHeadDim, class Element>
Kernels<Element> kernels_of() {
  return {forward<kHeadDim, Element>, backward_keys<kHeadDim, Element>,
          backward_queries<kHeadDim, Element>, Sizes<kHeadDim>::kParts};
}
template <class Element>
Kernels<Element> kernels_for(int64_t head_dim) {
  if (head_dim <= 64) return kernels_of<64, Element>();
  if (head_dim <= 128) return kernels_of<128, Element>();
  return kernels_of<256, Element>();
}

Launch on(int64_t tokens, int64_t sequences, int64_t heads, int64_t head_dim, void* stream) {
  const dim3 blocks(most_tiles(tokens, sequences, kTile), static_cast<unsigned>(heads), 1);
  return {blocks,
          {kThreads, 1, 1},
          static_cast<size_t>(attention_shared_bytes_bf16(head_dim)),
          static_cast<cudaStream_t>(stream)};
}

}  // namespace

int64_t attention_shared_bytes_bf16(int64_t head_dim) {
  const int64_t padded = head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
  return 3 * kTile * (padded + 8) * 2;
}

template <class Element>
int attention_forward_bf16(const Attention<Element>& args, void* stream) {
  return launch(kernels_for<Element>(args.head_dim).forward,
                on(args.tokens_q, args.sequences, args.num_heads, args.head_dim, stream), args);
}

template <class Element>
int attention_gradients_bf16(const Attention<Element>& args, void* stream) {
  const Kernels<Element> kernels = kernels_for<Element>(args.head_dim);
  const cudaError_t status = launch(
      kernels.keys,
      on(args.tokens_k, args.sequences, args.num_kv_heads * kernels.parts, args.head_dim, stream),
      args);
  if (status != cudaSuccess) return status;
  return launch(kernels.queries,
                on(args.tokens_q, args.sequences, args.num_heads, args.head_dim, stream), args);
}

template int attention_forward_bf16(const Attention<float>&, void*);
template int attention_forward_bf16(const Attention<bf16>&, void*);
template int attention_gradients_bf16(const Attention<float>&, void*);
template int attention_gradients_bf16(const Attention<bf16>&, void*);

}  // namespace jackscrew::cuda
