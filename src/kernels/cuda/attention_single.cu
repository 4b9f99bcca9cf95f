// Attention of a single query: tiles of queries would multiply little but zeros, one tile of keys
// after the other. Here the threads of a block share the keys of a head, and each group of them
// has a softmax of its own until the end. Which group has a key, and the order in which groups are
// joined, is fixed: results repeat bit for bit.
#include "kernels/cuda/attention_single.h"

#include "kernels/cuda/adjacent.cuh"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/row_math.h"

namespace jackscrew::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPerKey = 8;  // threads that share a key, neighbours in a warp
constexpr int kGroups = kThreads / kPerKey;
constexpr int kPiece = 8;  // adjacent elements of a thread

// A thread's elements of a row: kPieces pieces, kPerKey * kPiece elements apart.
template <int kPieces>
using Elements = float[kPieces * kPiece];

// A head's row, of which a thread has some elements.
template <int kPieces, class Element>
struct HeadRows {
  const Element* first;  // the thread's first element of row 0
  int64_t stride;
  int dim;       // elements of the head from the thread's first one on
  bool aligned;  // all rows and pieces are at multiples of 16 bytes

  // rows: [?, head_dim] with that stride.
  __device__ HeadRows(const Element* rows, int64_t row_stride, int64_t head_dim) {
    const int column = static_cast<int>(threadIdx.x) % kPerKey * kPiece;
    first = rows + column;
    stride = row_stride;
    dim = static_cast<int>(head_dim) - column;
    const auto address =
        reinterpret_cast<uintptr_t>(rows) | static_cast<uintptr_t>(stride) * sizeof(Element);
    aligned = address % alignof(Adjacent<Element, kPiece>) == 0;
  }

  // The thread's elements of a row, zeros beyond the head, or of no row.
  __device__ void load(int64_t row, bool is_there, Adjacent<Element, kPiece> (&to)[kPieces]) const {
    const Element* from = first + row * stride;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int column = p * kPerKey * kPiece;
      to[p] = {};
      if (!is_there) continue;
      if (aligned && column + kPiece <= dim) {
        to[p] = *reinterpret_cast<const Adjacent<Element, kPiece>*>(from + column);
      } else {
#pragma unroll
        for (int e = 0; e < kPiece; ++e) {
          if (column + e < dim) to[p].elements[e] = from[column + e];
        }
      }
    }
  }
};

// The softmax over some keys: of each thread's elements of the values, and the same for all threads
// of a group.
template <int kPieces>
struct Partial {
  float largest = kLowestScore;
  float total = 0.0f;
  Elements<kPieces> sum = {};

  // Makes room for scores of up to `score`.
  __device__ void raise(float score) {
    const float now = row_max(largest, score);
    const float shrink = row_exp(largest - now);
    largest = now;
    total *= shrink;
#pragma unroll
    for (float& value : sum) value *= shrink;
  }
  template <class Element>
  __device__ void add(float weight, const Adjacent<Element, kPiece> (&value)[kPieces]) {
    total += weight;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
#pragma unroll
      for (int e = 0; e < kPiece; ++e) {
        sum[p * kPiece + e] += weight * to_float(value[p].elements[e]);
      }
    }
  }
  // Adds what thread `lane ^ other` has of other keys.
  __device__ void join(int other) {
    const float theirs = __shfl_xor_sync(0xFFFFFFFFu, largest, other);
    const float now = row_max(largest, theirs);
    const float shrink = row_exp(largest - now);
    const float their_shrink = row_exp(theirs - now);
    largest = now;
    total = total * shrink + __shfl_xor_sync(0xFFFFFFFFu, total, other) * their_shrink;
#pragma unroll
    for (float& value : sum) {
      value = value * shrink + __shfl_xor_sync(0xFFFFFFFFu, value, other) * their_shrink;
    }
  }
};

// One block per head.
template <int kPieces, class Element>
__global__ void __launch_bounds__(kThreads) forward_single(const Attention<Element> args) {
  constexpr int kKeys = kPieces > 2 ? 2 : 4;  // of a group at once: their loads wait together
  using Row = Adjacent<Element, kPiece>[kPieces];
  const Sequence sequence(args, 0);
  const int64_t head = blockIdx.x;
  const int64_t kv_head = head / (args.num_heads / args.num_kv_heads);
  const HeadRows<kPieces, Element> keys(
      args.k + sequence.first_k * args.k_stride + kv_head * args.head_dim, args.k_stride,
      args.head_dim);
  const HeadRows<kPieces, Element> values(
      args.v + sequence.first_k * args.v_stride + kv_head * args.head_dim, args.v_stride,
      args.head_dim);
  Row query;
  HeadRows<kPieces, Element>(args.q + head * args.head_dim, args.q_stride, args.head_dim)
      .load(0, true, query);
  Partial<kPieces> mine;
  const int64_t group = static_cast<int>(threadIdx.x) / kPerKey;
  for (int64_t begin = sequence.first_keys(0, 1); begin < sequence.length_k;
       begin += kGroups * kKeys) {
    Row key[kKeys];
    Row value[kKeys];
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const int64_t at = begin + j * kGroups + group;
      keys.load(at, at < sequence.length_k, key[j]);
      values.load(at, at < sequence.length_k, value[j]);
    }
    float score[kKeys];
    float largest = kLowestScore;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      float sum = 0.0f;
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
#pragma unroll
        for (int e = 0; e < kPiece; ++e) {
          sum += to_float(query[p].elements[e]) * to_float(key[j][p].elements[e]);
        }
      }
      for (int step = kPerKey / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
      }
      score[j] = args.scale * sum;
      if (begin + j * kGroups + group < sequence.length_k) largest = row_max(largest, score[j]);
    }
    mine.raise(largest);
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const bool is_there = begin + j * kGroups + group < sequence.length_k;
      mine.add(is_there ? row_exp(score[j] - mine.largest) : 0.0f, value[j]);
    }
  }
  for (int other = kPerKey; other < kWarp; other *= 2) mine.join(other);
  // The warps' sums in shared memory, joined by as many threads as the head has elements.
  float* sums = dynamic_floats();                  // [kWarps, head_dim]
  float* largest = sums + kWarps * args.head_dim;  // [kWarps]
  float* totals = largest + kWarps;                // [kWarps]
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane < kPerKey) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
#pragma unroll
      for (int e = 0; e < kPiece; ++e) {
        const int64_t column = (p * kPerKey + lane) * kPiece + e;
        if (column < args.head_dim) sums[warp * args.head_dim + column] = mine.sum[p * kPiece + e];
      }
    }
  }
  if (lane == 0) {
    largest[warp] = mine.largest;
    totals[warp] = mine.total;
  }
  __syncthreads();
  float most = kLowestScore;
  for (int w = 0; w < kWarps; ++w) most = row_max(most, largest[w]);
  float total = 0.0f;
  for (int w = 0; w < kWarps; ++w) total += totals[w] * row_exp(largest[w] - most);
  for (int64_t column = threadIdx.x; column < args.head_dim; column += kThreads) {
    float sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      sum += sums[w * args.head_dim + column] * row_exp(largest[w] - most);
    }
    args.out[head * args.head_dim + column] = from_float<Element>(sum / total);
  }
  if (threadIdx.x == 0) args.lse[head] = most + logf(total);
}

template <int kPieces, class Element>
int launch_single(const Attention<Element>& args, void* stream) {
  const size_t floats = static_cast<size_t>(kWarps * (args.head_dim + 2));
  return launch(forward_single<kPieces, Element>,
                {{static_cast<unsigned>(args.num_heads), 1, 1},
                 {kThreads, 1, 1},
                 floats * sizeof(float),
                 static_cast<cudaStream_t>(stream)},
                args);
}

}  // namespace

template <class Element>
int attention_forward_single(const Attention<Element>& args, void* stream) {
  if (args.head_dim <= kPerKey * kPiece) return launch_single<1>(args, stream);
  if (args.head_dim <= 2 * kPerKey * kPiece) return launch_single<2>(args, stream);
  return launch_single<4>(args, stream);
}

template int attention_forward_single(const Attention<float>&, void*);
template int attention_forward_single(const Attention<bf16>&, void*);

}  // namespace jackscrew::cuda
