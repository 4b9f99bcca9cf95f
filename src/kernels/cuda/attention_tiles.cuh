// How attention kernels divide their work: a block of threads has a tile of queries or keys of one
// sequence.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch.cuh"

namespace jackscrew::cuda {

// Below every score: the maximum of no scores.
inline constexpr float kLowestScore = -3.4028235e38f;

// A tile of a sequence; -1 for blocks beyond the last tile.
struct TilePosition {
  int64_t sequence = -1;
  int64_t first = 0;  // row of the tile within the sequence
};

// Finds a tile by its number over all sequences, each of which has whole tiles.
template <int kTile>
__device__ TilePosition find_tile(const int32_t* cu_seqlens, int64_t sequences, int64_t tile) {
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t tiles = (cu_seqlens[s + 1] - cu_seqlens[s] + kTile - 1) / kTile;
    if (tile < tiles) return {s, tile * kTile};
    tile -= tiles;
  }
  return {};
}

// Which tiles of a sequence have the most pairs of query and key: of queries the last ones, which
// see all keys before them, of keys the first ones.
enum class MostWork { last, first };

// Finds a tile, by all threads of a block, by its number in an order that begins with those of the
// most work, whatever their sequence: none is left for the end, with nothing beside it. Takes the
// beginning of the block's dynamic shared memory while it runs.
template <int kTile, int kThreads>
__device__ TilePosition find_tile_by_work(const int32_t* cu_seqlens, int64_t sequences,
                                          int64_t tokens, int64_t number, MostWork most) {
  auto* found = reinterpret_cast<TilePosition*>(dynamic_floats());
  const auto tiles_of = [&](int64_t s) {
    return (cu_seqlens[s + 1] - cu_seqlens[s] + kTile - 1) / kTile;
  };
  if (threadIdx.x == 0) *found = {};
  __syncthreads();
  // A tile's rank is how many of its sequence have less work. One thread finds as many tiles of
  // higher ranks than its own as come before `number`, and not that many with those of its own.
  for (int64_t rank = threadIdx.x; rank <= tokens / kTile; rank += kThreads) {
    int64_t before = 0;
    int64_t of_rank = 0;
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t tiles = tiles_of(s) - rank;
      if (tiles <= 0) continue;
      before += tiles - 1;
      ++of_rank;
    }
    if (of_rank == 0) break;  // no sequence has a tile of this rank, and so none of a higher one
    int64_t left = number - before;
    if (left < 0 || left >= of_rank) continue;
    int64_t sequence = 0;
    for (;; ++sequence) {
      if (tiles_of(sequence) > rank && left-- == 0) break;
    }
    const int64_t tile = most == MostWork::last ? rank : tiles_of(sequence) - 1 - rank;
    *found = {sequence, tile * kTile};
  }
  __syncthreads();
  const TilePosition place = *found;
  __syncthreads();
  return place;
}

// The most tiles that so many sequences can have with so many tokens in all.
inline unsigned most_tiles(int64_t tokens, int64_t sequences, int tile) {
  return static_cast<unsigned>(tokens / tile + sequences);
}

// A sequence, and which query sees which key in it: both are counted from its start.
struct Sequence {
  int64_t first_q, first_k;  // its first tokens
  int64_t length_q, length_k;
  int64_t hidden;  // keys before the first query
  int64_t window;  // keys that a query sees at most

  template <class Element>
  __device__ Sequence(const Attention<Element>& args, int64_t index)
      : first_q(args.cu_seqlens_q[index]),
        first_k(args.cu_seqlens_k[index]),
        length_q(args.cu_seqlens_q[index + 1] - first_q),
        length_k(args.cu_seqlens_k[index + 1] - first_k),
        hidden(length_k - length_q),
        window(args.window > 0 ? args.window : length_k) {}

  __device__ bool sees(int64_t query, int64_t key) const {
    const int64_t distance = hidden + query - key;
    return query < length_q && key < length_k && distance >= 0 && distance < window;
  }

  // The keys that any query of a tile sees lie in [first_keys, end_of_keys), which begins at a
  // multiple of `tile`.
  __device__ int64_t first_keys(int64_t query, int tile) const {
    const int64_t unseen = hidden + query + 1 - window;
    return unseen > 0 ? unseen / tile * tile : 0;
  }
  __device__ int64_t end_of_keys(int64_t query, int queries) const {
    const int64_t end = hidden + query + queries;
    return end < length_k ? end : length_k;
  }
  // The end of the queries that see a key of the tile; they begin with the tile's first. For as
  // many queries as keys.
  __device__ int64_t end_of_queries(int64_t key, int keys) const {
    const int64_t end = key + keys - 1 + window;
    return end < length_q ? end : length_q;
  }
};

}  // namespace jackscrew::cuda
