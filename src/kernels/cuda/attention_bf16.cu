// Attention on tensor cores. A block has a tile of queries or keys, of which a warp has some rows,
// and goes through tiles of the other kind while the next one is on its way. Operands are rounded
// to bf16; sums and softmax are f32. Sums are taken in an order that the shapes fix, and no two
// blocks write to one place: results repeat bit for bit.
#include "kernels/cuda/attention_bf16.h"

#include "kernels/cuda/attention_bf16_tiles.cuh"

namespace jackscrew::cuda {

namespace {

constexpr int kThreads = kAttentionThreads;
constexpr float kLog2E = 1.44269504f;  // exponentials are powers of 2, which the hardware has
// Below every score, and finite times any scale (which is positive): the maximum of no scores.
constexpr float kNoScore = -1e30f;

// Blocks that an SM is to run at once: while one waits, the other multiplies. Of more its registers
// would not hold the sums.
constexpr int kBlocks = 2;
// What a block may have on every GPU since Ampere.
constexpr int kMostSharedBytes = 99 << 10;

// Sizes for heads of up to kHeadDim elements; those beyond the head are 0.
template <int kHeadDim>
struct Sizes {
  // With 32 rows a warp multiplies every matrix from shared memory twice, and does not wait for
  // shared memory more than for tensor cores; of larger heads registers hold the sums of 16.
  static constexpr int kWarpRows = kHeadDim > 128 ? 16 : 32;
  static constexpr int kTile = kAttentionWarps * kWarpRows;  // of forward and backward_queries
  static constexpr int kTileHalves = kTile * kHeadDim;
  // As many as registers hold scores of beside the sums, since barriers, maxima and their shuffles
  // are of a tile; backward, scores and their gradients.
  static constexpr int kKeysForward = kHeadDim > 64 ? 64 : 128;
  static constexpr int kKeysBackward = kHeadDim > 128 ? 16 : 32;

  // backward_keys has two warps for the same keys, or dk and dv would not fit into registers: for
  // scores each takes half of the queries, for sums half of a row.
  static constexpr int kKeys = 2 * kWarpRows;
  static constexpr int kQueries = kHeadDim > 128 ? 32 : 64;
  static constexpr int kScorePitch = 64;  // halves from row to row of a tile of scores

  static constexpr int kForwardBytes = 2 * (kTile + 2 * kKeysForward) * kHeadDim;
  static constexpr int kQueriesBytes =
      2 * (2 * kTile + 4 * kKeysBackward) * kHeadDim + 4 * 2 * kTile;
  static constexpr int kKeysBytes =
      2 * (2 * kKeys + 3 * kQueries) * kHeadDim + 2 * 2 * kKeys * kScorePitch + 4 * 4 * kQueries;
};

// A sequence in 32 bits, which its numbers of tokens fit into.
template <class Element>
struct Tokens {
  const Attention<Element>& args;
  int first_q, first_k;
  int length_q, length_k;
  int hidden, window;

  __device__ Tokens(const Attention<Element>& of, const Sequence& sequence)
      : args(of),
        first_q(static_cast<int>(sequence.first_q)),
        first_k(static_cast<int>(sequence.first_k)),
        length_q(static_cast<int>(sequence.length_q)),
        length_k(static_cast<int>(sequence.length_k)),
        hidden(static_cast<int>(sequence.hidden)),
        window(sequence.window < sequence.length_k ? static_cast<int>(sequence.window) : length_k) {
  }

  template <int kHeadDim>
  __device__ Source<kHeadDim, Element> queries(const Element* data, int64_t stride,
                                               int head) const {
    return {data + int64_t{first_q} * stride + head * args.head_dim, stride, length_q,
            args.head_dim};
  }
  template <int kHeadDim>
  __device__ Source<kHeadDim, Element> keys(const Element* data, int64_t stride, int head) const {
    return {data + int64_t{first_k} * stride + head * args.head_dim, stride, length_k,
            args.head_dim};
  }
  __device__ Sight sight(int query, int key) const { return {hidden + query - key, window}; }
};

// The softmax of the rows of a warp as far as they have come: a thread's four rows of 32, or two.
template <int kRows>
struct Softmax {
  static constexpr int kFragments = kRows / kFragmentRows;
  float largest[kFragments][2];
  float total[kFragments][2] = {};  // of the thread's columns

  __device__ Softmax() {
    for (auto& rows : largest) rows[0] = rows[1] = kNoScore;
  }

  // Turns scores into weights, powers of 2. What was summed with earlier ones is rescaled only
  // where the largest score has grown by enough: weights of up to 2^kSlack are as exact.
  template <int kKeys, int kHeadDim>
  __device__ void add(float scale, Fragments<kRows, kKeys>& scores,
                      Fragments<kRows, kHeadDim>& out) {
    constexpr float kSlack = 8.0f;
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      float now[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        now[r] = largest[m][r];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          now[r] = fmaxf(now[r], fmaxf(scores[m][n][2 * r], scores[m][n][2 * r + 1]));
        }
        now[r] = row_largest(now[r]);
      }
      if (scale * fmaxf(now[0] - largest[m][0], now[1] - largest[m][1]) > kSlack) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float shrink = exp2_approximate(scale * (largest[m][r] - now[r]));
          largest[m][r] = now[r];
          total[m][r] *= shrink;
#pragma unroll
          for (int n = 0; n < kHeadDim / 8; ++n) {
            out[m][n][2 * r] *= shrink;
            out[m][n][2 * r + 1] *= shrink;
          }
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float shift = scale * largest[m][r];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int i = 2 * r; i < 2 * r + 2; ++i) {
            scores[m][n][i] = exp2_approximate(scale * scores[m][n][i] - shift);
            total[m][r] += scores[m][n][i];
          }
        }
      }
    }
  }
};

// One block per tile of queries and head.
template <int kHeadDim, class Element>
__global__ void __launch_bounds__(kThreads, kBlocks) forward(const Attention<Element> args) {
  using Size = Sizes<kHeadDim>;
  constexpr int kRows = Size::kWarpRows;
  constexpr int kKeys = Size::kKeysForward;
  const auto head = static_cast<int>(blockIdx.x % args.num_heads);
  const TilePosition place =
      find_tile_by_work<Size::kTile, kThreads>(args.cu_seqlens_q, args.sequences, args.tokens_q,
                                               blockIdx.x / args.num_heads, MostWork::last);
  if (place.sequence < 0) return;
  const Sequence sequence(args, place.sequence);
  const Tokens<Element> tokens(args, sequence);
  const auto kv_head = static_cast<int>(head / (args.num_heads / args.num_kv_heads));
  uint16_t* q_tile = dynamic_halves();                                // [kTile, kHeadDim]
  uint16_t* k_tile = q_tile + Size::kTileHalves;                      // [kKeys, kHeadDim]
  uint16_t* v_tile = k_tile + kKeys * kHeadDim;                       // [kKeys, kHeadDim]
  const auto first = static_cast<int>(place.first) + warp() * kRows;  // of the warp's queries
  const int rows = tokens.length_q - first;
  const auto keys = tokens.template keys<kHeadDim>(args.k, args.k_stride, kv_head);
  const auto values = tokens.template keys<kHeadDim>(args.v, args.v_stride, kv_head);
  const auto end = static_cast<int>(sequence.end_of_keys(place.first, Size::kTile));
  auto begin = static_cast<int>(sequence.first_keys(place.first, kKeys));
  const RowsOf<kHeadDim> queries(q_tile, warp() * kRows);
  const float scale = args.scale * kLog2E;
  Softmax<kRows> softmax;
  Fragments<kRows, kHeadDim> out = {};
  tokens.template queries<kHeadDim>(args.q, args.q_stride, head)
      .template load<Size::kTile>(static_cast<int>(place.first), q_tile);
  keys.template load<kKeys>(begin, k_tile);
  commit_copies();
  for (; begin < end; begin += kKeys) {
    wait_for_copies<0>();
    __syncthreads();  // the keys are there, and nobody needs the values before
    values.template load<kKeys>(begin, v_tile);
    commit_copies();
    const Sight sight = tokens.sight(first, begin);
    const bool works = rows > 0 && !sight.none_see(kRows, kKeys);
    Fragments<kRows, kKeys> scores;
    if (works) {
      multiply_rows<kHeadDim, kRows, kKeys>(queries, k_tile, 0, scores);
      if (!sight.all_see(kRows, kKeys)) hide_unseen<true, kRows, kKeys>(sight, scores);
      softmax.template add<kKeys, kHeadDim>(scale, scores, out);
    }
    wait_for_copies<0>();
    __syncthreads();  // the values are there, and nobody needs the keys
    if (begin + kKeys < end) keys.template load<kKeys>(begin + kKeys, k_tile);
    commit_copies();
    if (works) {
      add_columns<kHeadDim, kKeys, kRows, kHeadDim>(Rounded<kRows, kKeys>{scores}, v_tile, 0, out);
    }
  }
  const int64_t token = int64_t{tokens.first_q} + first;
#pragma unroll
  for (int m = 0; m < Softmax<kRows>::kFragments; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float total = row_total(softmax.total[m][r]);
      const float inverse = 1.0f / total;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        out[m][n][2 * r] *= inverse;
        out[m][n][2 * r + 1] *= inverse;
      }
      const int row = m * kFragmentRows + row_of(2 * r);
      if (lane() % 4 != 0 || row >= rows) continue;
      args.lse[head * args.tokens_q + token + row] =
          args.scale * softmax.largest[m][r] + logf(total);
    }
  }
  store<kRows, kHeadDim>(out, args.out + token * args.out_stride + head * args.head_dim,
                         args.out_stride, rows, static_cast<int>(args.head_dim));
}

// Turns scores into weights, and the products of dout and v into gradients of scores / scale. `lse`
// and `delta` say for element i of fragment n of the m-th rows what their query has.
template <int kRows, int kColumns, class Lse, class Delta>
__device__ void weigh(float scale, const Lse& lse, const Delta& delta,
                      Fragments<kRows, kColumns>& scores, Fragments<kRows, kColumns>& dscores) {
#pragma unroll
  for (int m = 0; m < kRows / kFragmentRows; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float weight = exp2_approximate(scale * scores[m][n][i] - kLog2E * lse(m, n, i));
        scores[m][n][i] = weight;
        dscores[m][n][i] = weight * (dscores[m][n][i] - delta(m, n, i));
      }
    }
  }
}

template <int kRows, int kColumns>
__device__ void rescale(float by, Fragments<kRows, kColumns>& values) {
#pragma unroll
  for (auto& rows : values) {
#pragma unroll
    for (auto& fragment : rows) {
#pragma unroll
      for (float& value : fragment) value *= by;
    }
  }
}

// One block per tile of keys and kv head: sums dk and dv over all queries, of all heads that share
// it.
template <int kHeadDim, class Element>
__global__ void __launch_bounds__(kThreads, kBlocks) backward_keys(const Attention<Element> args) {
  using Size = Sizes<kHeadDim>;
  constexpr int kRows = Size::kWarpRows;
  constexpr int kKeys = Size::kKeys;
  constexpr int kQueries = Size::kQueries;
  constexpr int kHalf = kQueries / 2;  // the queries of a warp
  constexpr int kPart = kHeadDim / 2;  // of a row of dk and dv
  constexpr int kPitch = Size::kScorePitch;
  const auto kv_head = static_cast<int>(blockIdx.x % args.num_kv_heads);
  const TilePosition place =
      find_tile_by_work<kKeys, kThreads>(args.cu_seqlens_k, args.sequences, args.tokens_k,
                                         blockIdx.x / args.num_kv_heads, MostWork::first);
  if (place.sequence < 0) return;
  const Sequence sequence(args, place.sequence);
  const Tokens<Element> tokens(args, sequence);
  const auto sharing = static_cast<int>(args.num_heads / args.num_kv_heads);
  uint16_t* k_tile = dynamic_halves();                      // [kKeys, kHeadDim]
  uint16_t* v_tile = k_tile + kKeys * kHeadDim;             // [kKeys, kHeadDim]
  uint16_t* q_tiles = v_tile + kKeys * kHeadDim;            // [2, kQueries, kHeadDim]
  uint16_t* dout_tile = q_tiles + 2 * kQueries * kHeadDim;  // [kQueries, kHeadDim]
  uint16_t* weight_tile = dout_tile + kQueries * kHeadDim;  // [kKeys, kPitch]
  uint16_t* dscore_tile = weight_tile + kKeys * kPitch;     // [kKeys, kPitch]
  auto* statistics = reinterpret_cast<float*>(dscore_tile + kKeys * kPitch);  // [2, 2, kQueries]
  const int row = warp() / 2 * kRows;     // the warp's first key in the tile
  const int column = warp() % 2 * kHalf;  // its first query
  const int others = kHalf - column;      // those of the other warp with these keys
  const int part = warp() % 2 * kPart;
  const auto first = static_cast<int>(place.first);
  const auto end = static_cast<int>(sequence.end_of_queries(place.first, kKeys));
  const float scale = args.scale * kLog2E;
  Fragments<kRows, kPart> dk = {};
  Fragments<kRows, kPart> dv = {};

  const int first_head = kv_head * sharing;
  auto queries = tokens.template queries<kHeadDim>(args.q, args.q_stride, first_head);
  auto douts = tokens.template queries<kHeadDim>(args.dout, args.dout_stride, first_head);
  int64_t token_of_head = first_head * args.tokens_q + tokens.first_q;  // of lse and delta
  // Queries come to two places in turns, with the statistics of their rows.
  const auto load_queries = [&](int begin, int turn) {
    queries.template load<kQueries>(begin, q_tiles + turn * kQueries * kHeadDim);
    float* to = statistics + turn * 2 * kQueries;
    const int left = tokens.length_q - begin;
    load_floats<kQueries>(args.lse + token_of_head + begin, left, to);
    load_floats<kQueries>(args.delta + token_of_head + begin, left, to + kQueries);
  };
  tokens.template keys<kHeadDim>(args.k, args.k_stride, kv_head)
      .template load<kKeys>(first, k_tile);
  tokens.template keys<kHeadDim>(args.v, args.v_stride, kv_head)
      .template load<kKeys>(first, v_tile);
  load_queries(first, 0);
  commit_copies();
  int heads = first < end ? sharing : 0;  // to come
  for (int begin = first, turn = 0; heads > 0; turn = 1 - turn) {
    const bool is_last = begin + kQueries >= end;  // of the head
    wait_for_copies<0>();
    __syncthreads();  // the queries are there, and nobody needs what came before
    douts.template load<kQueries>(begin, dout_tile);
    commit_copies();
    const int next = is_last ? first : begin + kQueries;
    if (is_last) {
      queries.from += args.head_dim;
      douts.from += args.head_dim;
      token_of_head += args.tokens_q;
      --heads;
    }
    if (heads > 0) load_queries(next, 1 - turn);
    commit_copies();
    const uint16_t* q_tile = q_tiles + turn * kQueries * kHeadDim;
    const float* of_queries = statistics + turn * 2 * kQueries + column;
    Fragments<kRows, kHalf> weights;  // [keys, queries]
    Fragments<kRows, kHalf> dscores;
    multiply_rows<kHeadDim, kRows, kHalf>(RowsOf<kHeadDim>(k_tile, row), q_tile, column, weights);
    const Sight sight = tokens.sight(begin + column, first + row);
    if (!sight.all_see(kHalf, kRows)) hide_unseen<false, kRows, kHalf>(sight, weights);
    wait_for_copies<1>();
    __syncthreads();  // dout is there
    multiply_rows<kHeadDim, kRows, kHalf>(RowsOf<kHeadDim>(v_tile, row), dout_tile, column,
                                          dscores);
    weigh<kRows, kHalf>(
        scale, [&](int, int n, int i) { return of_queries[n * 8 + column_of(i)]; },
        [&](int, int n, int i) { return of_queries[kQueries + n * 8 + column_of(i)]; }, weights,
        dscores);
    put<kPitch, kRows, kHalf>(weights, weight_tile, row, column);
    put<kPitch, kRows, kHalf>(dscores, dscore_tile, row, column);
    add_columns<kHeadDim, kHalf, kRows, kPart>(Rounded<kRows, kHalf>{weights},
                                               dout_tile + column * kHeadDim, part, dv);
    add_columns<kHeadDim, kHalf, kRows, kPart>(Rounded<kRows, kHalf>{dscores},
                                               q_tile + column * kHeadDim, part, dk);
    __syncthreads();  // what the other warp has of these keys is there
    add_columns<kHeadDim, kHalf, kRows, kPart>(RowsOf<kPitch>(weight_tile, row, others),
                                               dout_tile + others * kHeadDim, part, dv);
    add_columns<kHeadDim, kHalf, kRows, kPart>(RowsOf<kPitch>(dscore_tile, row, others),
                                               q_tile + others * kHeadDim, part, dk);
    begin = next;
  }
  wait_for_copies<0>();
  rescale<kRows, kPart>(args.scale, dk);
  const int64_t token = int64_t{tokens.first_k} + first + row;
  const int rows = tokens.length_k - first - row;
  const int columns = static_cast<int>(args.head_dim) - part;
  const int64_t at = kv_head * args.head_dim + part;
  store<kRows, kPart>(dk, args.dk + token * args.dk_stride + at, args.dk_stride, rows, columns);
  store<kRows, kPart>(dv, args.dv + token * args.dv_stride + at, args.dv_stride, rows, columns);
}

// One block per tile of queries and head: sums dq.
template <int kHeadDim, class Element>
__global__ void __launch_bounds__(kThreads, kBlocks)
    backward_queries(const Attention<Element> args) {
  using Size = Sizes<kHeadDim>;
  constexpr int kRows = Size::kWarpRows;
  constexpr int kKeys = Size::kKeysBackward;
  const auto head = static_cast<int>(blockIdx.x % args.num_heads);
  const TilePosition place =
      find_tile_by_work<Size::kTile, kThreads>(args.cu_seqlens_q, args.sequences, args.tokens_q,
                                               blockIdx.x / args.num_heads, MostWork::last);
  if (place.sequence < 0) return;
  const Sequence sequence(args, place.sequence);
  const Tokens<Element> tokens(args, sequence);
  const auto kv_head = static_cast<int>(head / (args.num_heads / args.num_kv_heads));
  uint16_t* q_tile = dynamic_halves();                 // [kTile, kHeadDim]
  uint16_t* dout_tile = q_tile + Size::kTileHalves;    // [kTile, kHeadDim]
  uint16_t* kv_tiles = dout_tile + Size::kTileHalves;  // [2, 2, kKeys, kHeadDim], keys and values
  auto* statistics = reinterpret_cast<float*>(kv_tiles + 4 * kKeys * kHeadDim);  // [2, kTile]
  const auto first = static_cast<int>(place.first) + warp() * kRows;  // of the warp's queries
  const int rows = tokens.length_q - first;
  const int64_t token = int64_t{tokens.first_q} + first;
  const float scale = args.scale * kLog2E;
  const auto end = static_cast<int>(sequence.end_of_keys(place.first, Size::kTile));
  auto begin = static_cast<int>(sequence.first_keys(place.first, kKeys));
  Fragments<kRows, kHeadDim> dq = {};
  const auto keys = tokens.template keys<kHeadDim>(args.k, args.k_stride, kv_head);
  const auto values = tokens.template keys<kHeadDim>(args.v, args.v_stride, kv_head);
  const auto load_keys = [&](int from, int turn) {
    uint16_t* to = kv_tiles + turn * 2 * kKeys * kHeadDim;
    keys.template load<kKeys>(from, to);
    values.template load<kKeys>(from, to + kKeys * kHeadDim);
    commit_copies();
  };
  tokens.template queries<kHeadDim>(args.q, args.q_stride, head)
      .template load<Size::kTile>(static_cast<int>(place.first), q_tile);
  tokens.template queries<kHeadDim>(args.dout, args.dout_stride, head)
      .template load<Size::kTile>(static_cast<int>(place.first), dout_tile);
  const int64_t first_token = head * args.tokens_q + tokens.first_q + place.first;
  const auto left = static_cast<int>(tokens.length_q - place.first);
  load_floats<Size::kTile>(args.lse + first_token, left, statistics);
  load_floats<Size::kTile>(args.delta + first_token, left, statistics + Size::kTile);
  load_keys(begin, 0);
  for (int turn = 0; begin < end; begin += kKeys, turn = 1 - turn) {
    wait_for_copies<0>();
    __syncthreads();  // these keys are there, and nobody needs those before
    if (begin + kKeys < end) load_keys(begin + kKeys, 1 - turn);
    const Sight sight = tokens.sight(first, begin);
    if (rows <= 0 || sight.none_see(kRows, kKeys)) continue;
    const uint16_t* k_tile = kv_tiles + turn * 2 * kKeys * kHeadDim;
    Fragments<kRows, kKeys> scores;
    Fragments<kRows, kKeys> dscores;
    multiply_rows<kHeadDim, kRows, kKeys>(RowsOf<kHeadDim>(q_tile, warp() * kRows), k_tile, 0,
                                          scores);
    if (!sight.all_see(kRows, kKeys)) hide_unseen<true, kRows, kKeys>(sight, scores);
    multiply_rows<kHeadDim, kRows, kKeys>(RowsOf<kHeadDim>(dout_tile, warp() * kRows),
                                          k_tile + kKeys * kHeadDim, 0, dscores);
    const float* of_queries = statistics + warp() * kRows;
    const auto row = [](int m, int i) { return m * kFragmentRows + row_of(i); };
    weigh<kRows, kKeys>(
        scale, [&](int m, int, int i) { return of_queries[row(m, i)]; },
        [&](int m, int, int i) { return of_queries[Size::kTile + row(m, i)]; }, scores, dscores);
    add_columns<kHeadDim, kKeys, kRows, kHeadDim>(Rounded<kRows, kKeys>{dscores}, k_tile, 0, dq);
  }
  rescale<kRows, kHeadDim>(args.scale, dq);
  store<kRows, kHeadDim>(dq, args.dq + token * args.dq_stride + head * args.head_dim,
                         args.dq_stride, rows, static_cast<int>(args.head_dim));
}

template <class Element>
using Kernel = void (*)(Attention<Element>);

// One block per tile of `tokens` and head.
template <class Element>
cudaError_t launch_tiles(Kernel<Element> kernel, const Attention<Element>& args, int64_t tokens,
                         int tile, int64_t heads, int shared_bytes, void* stream) {
  const auto tiles = most_tiles(tokens, args.sequences, tile);
  return launch(kernel,
                {{tiles * static_cast<unsigned>(heads), 1, 1},
                 {kThreads, 1, 1},
                 static_cast<size_t>(shared_bytes),
                 static_cast<cudaStream_t>(stream)},
                args);
}

template <int kHeadDim, class Element>
int launch_forward(const Attention<Element>& args, void* stream) {
  using Size = Sizes<kHeadDim>;
  return launch_tiles<Element>(forward<kHeadDim, Element>, args, args.tokens_q, Size::kTile,
                               args.num_heads, Size::kForwardBytes, stream);
}

template <int kHeadDim, class Element>
int launch_gradients(const Attention<Element>& args, void* stream) {
  using Size = Sizes<kHeadDim>;
  const cudaError_t status =
      launch_tiles<Element>(backward_keys<kHeadDim, Element>, args, args.tokens_k, Size::kKeys,
                            args.num_kv_heads, Size::kKeysBytes, stream);
  if (status != cudaSuccess) return status;
  return launch_tiles<Element>(backward_queries<kHeadDim, Element>, args, args.tokens_q,
                               Size::kTile, args.num_heads, Size::kQueriesBytes, stream);
}

template <int kHeadDim>
int64_t most_shared_bytes() {
  using Size = Sizes<kHeadDim>;
  constexpr int kBackward =
      Size::kKeysBytes > Size::kQueriesBytes ? Size::kKeysBytes : Size::kQueriesBytes;
  constexpr int kMost = kBackward > Size::kForwardBytes ? kBackward : Size::kForwardBytes;
  static_assert(kMost <= kMostSharedBytes);
  return kMost;
}

}  // namespace

int64_t attention_shared_bytes_bf16(int64_t head_dim) {
  if (head_dim <= 64) return most_shared_bytes<64>();
  if (head_dim <= 128) return most_shared_bytes<128>();
  return most_shared_bytes<256>();
}

template <class Element>
int attention_forward_bf16(const Attention<Element>& args, void* stream) {
  if (args.head_dim <= 64) return launch_forward<64>(args, stream);
  if (args.head_dim <= 128) return launch_forward<128>(args, stream);
  return launch_forward<256>(args, stream);
}

template <class Element>
int attention_gradients_bf16(const Attention<Element>& args, void* stream) {
  if (args.head_dim <= 64) return launch_gradients<64>(args, stream);
  if (args.head_dim <= 128) return launch_gradients<128>(args, stream);
  return launch_gradients<256>(args, stream);
}

template int attention_forward_bf16(const Attention<float>&, void*);
template int attention_forward_bf16(const Attention<bf16>&, void*);
template int attention_gradients_bf16(const Attention<float>&, void*);
template int attention_gradients_bf16(const Attention<bf16>&, void*);

}  // namespace jackscrew::cuda
