// Attention in f32, multiplied by every thread; tensor cores have no products as exact. A block
// works on a tile of queries or keys, and goes through tiles of the other kind. Sums are taken in
// an order that the shapes fix, and no two blocks write to one place: results repeat bit for bit.
#include "kernels/cuda/attention.h"

#include "kernels/cuda/adjacent.cuh"
#include "kernels/cuda/attention_bf16.h"
#include "kernels/cuda/attention_single.h"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/row_math.h"

namespace jackscrew::cuda {

namespace {

constexpr int kTile = 32;
constexpr int kPerRow = 8;  // threads that share a row of a tile, neighbours in a warp
constexpr int kThreads = kTile * kPerRow;
constexpr int kScores = kTile / kPerRow;  // of its row that a thread computes
constexpr int kScorePitch = kTile + 1;    // floats from row to row, which fall into different banks

// The work of a block and of this thread.
struct Work : Sequence {
  int64_t head_dim, pitch;  // pitch: floats from row to row of a tile
  int64_t row, lane;        // of this thread in a tile

  __device__ Work(const Attention<float>& args, int64_t sequence)
      : Sequence(args, sequence),
        head_dim(args.head_dim),
        pitch(args.head_dim + 1),
        row(threadIdx.x / kPerRow),
        lane(threadIdx.x % kPerRow) {}

  // Loads rows [begin, begin + kTile) of a head into shared memory, zeros beyond `end`. `from` is
  // the sequence's first row.
  __device__ void load(const float* from, int64_t stride, int64_t head, int64_t begin, int64_t end,
                       float* tile) const {
    for (int64_t i = threadIdx.x; i < kTile * head_dim; i += kThreads) {
      const int64_t r = i / head_dim;
      const int64_t c = i % head_dim;
      const bool is_there = begin + r < end;
      tile[r * pitch + c] = is_there ? from[(begin + r) * stride + head * head_dim + c] : 0.0f;
    }
  }

  __device__ float dot(const float* a, const float* b) const {
    float sum = 0.0f;
    for (int64_t c = 0; c < head_dim; ++c) sum += a[c] * b[c];
    return sum;
  }

  // sum[slot] += weights[i] * tile[i, lane + slot * kPerRow] for the rows i of a tile.
  template <int kSlots>
  __device__ void accumulate(const float* weights, const float* tile, float (&sum)[kSlots]) const {
    for (int i = 0; i < kTile; ++i) {
      const float weight = weights[i];
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const int64_t c = lane + slot * kPerRow;
        if (c < head_dim) sum[slot] += weight * tile[i * pitch + c];
      }
    }
  }

  template <int kSlots>
  __device__ void store(const float (&values)[kSlots], float* to) const {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int64_t c = lane + slot * kPerRow;
      if (c < head_dim) to[c] = values[slot];
    }
  }
};

// Reductions over the threads of a row.
__device__ float row_total(float value) {
  for (int step = kPerRow / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  }
  return value;
}
__device__ float row_largest(float value) {
  for (int step = kPerRow / 2; step > 0; step /= 2) {
    value = row_max(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
  }
  return value;
}

// One block per tile of queries and head.
template <int kSlots>
__global__ void __launch_bounds__(kThreads) forward(const Attention<float> args) {
  const TilePosition place = find_tile<kTile>(args.cu_seqlens_q, args.sequences, blockIdx.x);
  if (place.sequence < 0) return;
  const Work work(args, place.sequence);
  const int64_t head = blockIdx.y;
  const int64_t kv_head = head / (args.num_heads / args.num_kv_heads);
  float* q_tile = dynamic_floats();               // [kTile, pitch]
  float* kv_tile = q_tile + kTile * work.pitch;   // [kTile, pitch], keys and then values
  float* weights = kv_tile + kTile * work.pitch;  // [kTile, kScorePitch]
  work.load(args.q + work.first_q * args.q_stride, args.q_stride, head, place.first, work.length_q,
            q_tile);
  const int64_t query = place.first + work.row;
  const int64_t keys = work.end_of_keys(place.first, kTile);
  float largest = kLowestScore;
  float total = 0.0f;
  float sum[kSlots] = {};
  for (int64_t begin = work.first_keys(place.first, kTile); begin < keys; begin += kTile) {
    __syncthreads();
    work.load(args.k + work.first_k * args.k_stride, args.k_stride, kv_head, begin, work.length_k,
              kv_tile);
    __syncthreads();
    float score[kScores];
    float tile_largest = kLowestScore;
    for (int j = 0; j < kScores; ++j) {
      const int64_t c = work.lane + j * kPerRow;
      score[j] = args.scale * work.dot(q_tile + work.row * work.pitch, kv_tile + c * work.pitch);
      if (work.sees(query, begin + c)) tile_largest = row_max(tile_largest, score[j]);
    }
    const float now = row_max(largest, row_largest(tile_largest));
    const float shrink = row_exp(largest - now);
    float tile_total = 0.0f;
    for (int j = 0; j < kScores; ++j) {
      const int64_t c = work.lane + j * kPerRow;
      const float weight = work.sees(query, begin + c) ? row_exp(score[j] - now) : 0.0f;
      weights[work.row * kScorePitch + c] = weight;
      tile_total += weight;
    }
    total = total * shrink + row_total(tile_total);
    largest = now;
    __syncthreads();
    work.load(args.v + work.first_k * args.v_stride, args.v_stride, kv_head, begin, work.length_k,
              kv_tile);
    __syncthreads();
    for (int slot = 0; slot < kSlots; ++slot) sum[slot] *= shrink;
    work.accumulate(weights + work.row * kScorePitch, kv_tile, sum);
  }
  if (query >= work.length_q) return;
  for (int slot = 0; slot < kSlots; ++slot) sum[slot] /= total;
  const int64_t token = work.first_q + query;
  work.store(sum, args.out + token * args.out_stride + head * work.head_dim);
  if (work.lane == 0) args.lse[head * args.tokens_q + token] = largest + logf(total);
}

// Elements of a row that a thread of compute_delta() has: all that 32 threads leave of the largest
// head.
constexpr int kDeltaElements = kAttentionMaxHeadDim / kWarp;

// Threads that share a row, neighbours in a warp.
__host__ __device__ int delta_threads(int64_t head_dim) {
  return head_dim <= 8 * kDeltaElements ? 8 : head_dim <= 16 * kDeltaElements ? 16 : kWarp;
}

// delta[head, token] = dout · out. One block per head (y) and as many tokens as it has threads for.
template <class Element>
__global__ void __launch_bounds__(kThreads) compute_delta(const Attention<Element> args) {
  const int sharing = delta_threads(args.head_dim);
  const int64_t head = blockIdx.y;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * (kThreads / sharing) +
                        static_cast<int>(threadIdx.x) / sharing;
  const int64_t column = static_cast<int>(threadIdx.x) % sharing * kDeltaElements;
  float sum = 0.0f;
  if (token < args.tokens_q) {
    const Element* dout = args.dout + token * args.dout_stride + head * args.head_dim + column;
    const Element* out = args.out + token * args.out_stride + head * args.head_dim + column;
    const auto address = reinterpret_cast<uintptr_t>(dout) | reinterpret_cast<uintptr_t>(out);
    using Piece = Adjacent<Element, kDeltaElements>;
    Piece left{};
    Piece right{};
    if (address % alignof(Piece) == 0 && column + kDeltaElements <= args.head_dim) {
      left = *reinterpret_cast<const Piece*>(dout);
      right = *reinterpret_cast<const Piece*>(out);
    } else {
      for (int i = 0; i < kDeltaElements && column + i < args.head_dim; ++i) {
        left.elements[i] = dout[i];
        right.elements[i] = out[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kDeltaElements; ++i) {
      sum += to_float(left.elements[i]) * to_float(right.elements[i]);
    }
  }
  for (int step = sharing / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  if (token < args.tokens_q && column == 0) args.delta[head * args.tokens_q + token] = sum;
}

// The softmax weight of a query-key pair, and the gradient of its score, times the scale.
struct Pair {
  float weight, dscore;
};
__device__ Pair score_gradient(const Attention<float>& args, const Work& work, int64_t head,
                               int64_t query, int64_t key, const float* q, const float* k,
                               const float* dout, const float* v) {
  if (!work.sees(query, key)) return {0.0f, 0.0f};
  const int64_t at = head * args.tokens_q + work.first_q + query;
  const float weight = row_exp(args.scale * work.dot(q, k) - args.lse[at]);
  return {weight, args.scale * weight * (work.dot(dout, v) - args.delta[at])};
}

// One block per tile of keys and kv head: sums dk and dv over all queries, of all heads that share
// it.
template <int kSlots>
__global__ void __launch_bounds__(kThreads) backward_keys(const Attention<float> args) {
  const TilePosition place = find_tile<kTile>(args.cu_seqlens_k, args.sequences, blockIdx.x);
  if (place.sequence < 0) return;
  const Work work(args, place.sequence);
  const int64_t kv_head = blockIdx.y;
  const int64_t sharing = args.num_heads / args.num_kv_heads;
  float* k_tile = dynamic_floats();  // [kTile, pitch], as are the next three
  float* v_tile = k_tile + kTile * work.pitch;
  float* q_tile = v_tile + kTile * work.pitch;
  float* dout_tile = q_tile + kTile * work.pitch;
  float* weights = dout_tile + kTile * work.pitch;  // [keys of the tile, kScorePitch]
  float* dscores = weights + kTile * kScorePitch;   // the same
  work.load(args.k + work.first_k * args.k_stride, args.k_stride, kv_head, place.first,
            work.length_k, k_tile);
  work.load(args.v + work.first_k * args.v_stride, args.v_stride, kv_head, place.first,
            work.length_k, v_tile);
  float dk[kSlots] = {};
  float dv[kSlots] = {};
  const int64_t queries = work.end_of_queries(place.first, kTile);
  for (int64_t head = kv_head * sharing; head < (kv_head + 1) * sharing; ++head) {
    for (int64_t begin = place.first; begin < queries; begin += kTile) {
      __syncthreads();
      work.load(args.q + work.first_q * args.q_stride, args.q_stride, head, begin, work.length_q,
                q_tile);
      work.load(args.dout + work.first_q * args.dout_stride, args.dout_stride, head, begin,
                work.length_q, dout_tile);
      __syncthreads();
      for (int j = 0; j < kScores; ++j) {
        const int64_t c = work.lane + j * kPerRow;
        const Pair pair =
            score_gradient(args, work, head, begin + c, place.first + work.row,
                           q_tile + c * work.pitch, k_tile + work.row * work.pitch,
                           dout_tile + c * work.pitch, v_tile + work.row * work.pitch);
        weights[work.row * kScorePitch + c] = pair.weight;
        dscores[work.row * kScorePitch + c] = pair.dscore;
      }
      __syncthreads();
      work.accumulate(weights + work.row * kScorePitch, dout_tile, dv);
      work.accumulate(dscores + work.row * kScorePitch, q_tile, dk);
    }
  }
  const int64_t key = place.first + work.row;
  if (key >= work.length_k) return;
  const int64_t token = work.first_k + key;
  work.store(dk, args.dk + token * args.dk_stride + kv_head * work.head_dim);
  work.store(dv, args.dv + token * args.dv_stride + kv_head * work.head_dim);
}

// One block per tile of queries and head: sums dq.
template <int kSlots>
__global__ void __launch_bounds__(kThreads) backward_queries(const Attention<float> args) {
  const TilePosition place = find_tile<kTile>(args.cu_seqlens_q, args.sequences, blockIdx.x);
  if (place.sequence < 0) return;
  const Work work(args, place.sequence);
  const int64_t head = blockIdx.y;
  const int64_t kv_head = head / (args.num_heads / args.num_kv_heads);
  float* q_tile = dynamic_floats();  // [kTile, pitch], as are the next three
  float* dout_tile = q_tile + kTile * work.pitch;
  float* k_tile = dout_tile + kTile * work.pitch;
  float* v_tile = k_tile + kTile * work.pitch;
  float* dscores = v_tile + kTile * work.pitch;  // [queries of the tile, kScorePitch]
  work.load(args.q + work.first_q * args.q_stride, args.q_stride, head, place.first, work.length_q,
            q_tile);
  work.load(args.dout + work.first_q * args.dout_stride, args.dout_stride, head, place.first,
            work.length_q, dout_tile);
  const int64_t query = place.first + work.row;
  const int64_t keys = work.end_of_keys(place.first, kTile);
  float dq[kSlots] = {};
  for (int64_t begin = work.first_keys(place.first, kTile); begin < keys; begin += kTile) {
    __syncthreads();
    work.load(args.k + work.first_k * args.k_stride, args.k_stride, kv_head, begin, work.length_k,
              k_tile);
    work.load(args.v + work.first_k * args.v_stride, args.v_stride, kv_head, begin, work.length_k,
              v_tile);
    __syncthreads();
    for (int j = 0; j < kScores; ++j) {
      const int64_t c = work.lane + j * kPerRow;
      dscores[work.row * kScorePitch + c] =
          score_gradient(args, work, head, query, begin + c, q_tile + work.row * work.pitch,
                         k_tile + c * work.pitch, dout_tile + work.row * work.pitch,
                         v_tile + c * work.pitch)
              .dscore;
    }
    __syncthreads();
    work.accumulate(dscores + work.row * kScorePitch, k_tile, dq);
  }
  if (query >= work.length_q) return;
  work.store(dq, args.dq + (work.first_q + query) * args.dq_stride + head * work.head_dim);
}

using Kernel = void (*)(Attention<float>);
struct Kernels {
  Kernel forward, keys, queries;
};

// Kernels with registers for a thread's elements of a row.
Kernels kernels_for(int64_t head_dim) {
  if (head_dim <= 8 * kPerRow) return {forward<8>, backward_keys<8>, backward_queries<8>};
  if (head_dim <= 16 * kPerRow) return {forward<16>, backward_keys<16>, backward_queries<16>};
  return {forward<32>, backward_keys<32>, backward_queries<32>};
}

unsigned as_unsigned(int64_t value) {
  return static_cast<unsigned>(value);
}

template <class Element>
cudaError_t launch_compute_delta(const Attention<Element>& args, cudaStream_t stream) {
  const int64_t rows = kThreads / delta_threads(args.head_dim);  // of a block
  const dim3 blocks(as_unsigned((args.tokens_q + rows - 1) / rows), as_unsigned(args.num_heads), 1);
  return launch(compute_delta<Element>, {blocks, {kThreads, 1, 1}, 0, stream}, args);
}

int forward_f32(const Attention<float>& args, cudaStream_t stream) {
  const dim3 blocks(most_tiles(args.tokens_q, args.sequences, kTile), as_unsigned(args.num_heads),
                    1);
  const size_t floats = static_cast<size_t>(2 * kTile * (args.head_dim + 1) + kTile * kScorePitch);
  return launch(kernels_for(args.head_dim).forward,
                {blocks, {kThreads, 1, 1}, floats * sizeof(float), stream}, args);
}

int gradients_f32(const Attention<float>& args, cudaStream_t stream) {
  const dim3 threads(kThreads, 1, 1);
  const auto shared = static_cast<size_t>(attention_shared_bytes(args.head_dim, false));
  const Kernels kernels = kernels_for(args.head_dim);
  const dim3 key_blocks(most_tiles(args.tokens_k, args.sequences, kTile),
                        as_unsigned(args.num_kv_heads), 1);
  const cudaError_t status = launch(kernels.keys, {key_blocks, threads, shared, stream}, args);
  if (status != cudaSuccess) return status;
  const dim3 query_blocks(most_tiles(args.tokens_q, args.sequences, kTile),
                          as_unsigned(args.num_heads), 1);
  return launch(kernels.queries, {query_blocks, threads, shared, stream}, args);
}

}  // namespace

int64_t attention_shared_bytes(int64_t head_dim, bool bf16_operands) {
  if (bf16_operands) return attention_shared_bytes_bf16(head_dim);
  const int64_t tile = kTile * (head_dim + 1);
  const int64_t scores = kTile * kScorePitch;
  return (4 * tile + 2 * scores) * static_cast<int64_t>(sizeof(float));
}

template <class Element>
int attention_forward(const Attention<Element>& args, void* stream) {
  if (args.tokens_q == 0) return cudaSuccess;
  if (args.tokens_q == 1 && args.sequences == 1) return attention_forward_single(args, stream);
  if constexpr (std::is_same_v<Element, float>) {
    if (!args.bf16_operands) return forward_f32(args, static_cast<cudaStream_t>(stream));
  }
  return attention_forward_bf16(args, stream);
}

template <class Element>
int attention_backward(const Attention<Element>& args, void* stream) {
  if (args.tokens_q == 0) return cudaSuccess;
  const auto on = static_cast<cudaStream_t>(stream);
  const cudaError_t status = launch_compute_delta(args, on);
  if (status != cudaSuccess) return status;
  if constexpr (std::is_same_v<Element, float>) {
    if (!args.bf16_operands) return gradients_f32(args, on);
  }
  return attention_gradients_bf16(args, stream);
}

template int attention_forward(const Attention<float>&, void*);
template int attention_forward(const Attention<bf16>&, void*);
template int attention_backward(const Attention<float>&, void*);
template int attention_backward(const Attention<bf16>&, void*);

}  // namespace jackscrew::cuda
