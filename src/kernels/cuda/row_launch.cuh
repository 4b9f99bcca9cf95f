// How row kernels are launched on NVIDIA GPUs, alone and several at once. A part of row_cuda.cuh.
#pragma once

namespace jackscrew::cuda {

template <class Args>
concept HasShortLoops = requires {
  requires Args::kShortLoops;
};

template <class Args>
concept HasSharedFloats = requires {
  Args::kSharedFloats;
};

template <class Args>
concept HasBlocksAtOnce = requires {
  Args::kBlocksAtOnce;
};

// Bytes of a block's shared memory that a kernel has for its row.
template <class Args>
constexpr size_t shared_bytes() {
  if constexpr (HasSharedFloats<Args>) return sizeof(float) * Args::kSharedFloats;
  return 0;
}

// How many threads work on a row.
template <class Args>
inline constexpr int kTeamSize = HasShortLoops<Args> ? kWarp : kThreads;

// Blocks that a multiprocessor is to run at a time; 0: as many as there are registers for.
template <class Args>
constexpr int blocks_at_once() {
  if constexpr (HasBlocksAtOnce<Args>) return Args::kBlocksAtOnce;
  return 0;
}

template <class Args>
__global__ void __launch_bounds__(kThreads, blocks_at_once<Args>())
    run_rows(const Args args, int64_t rows) {
  constexpr int kSize = kTeamSize<Args>;
  constexpr int64_t kTeams = kThreads / kSize;
  for (int64_t row = blockIdx.x * kTeams + threadIdx.x / kSize; row < rows;
       row += gridDim.x * kTeams) {
    args(TeamOf<kSize>{}, row);
  }
}

// Blocks for so many rows, as far as the grid's first dimension goes.
template <class Args>
unsigned blocks_for(int64_t rows) {
  constexpr int64_t kTeams = kThreads / kTeamSize<Args>;
  const int64_t limit = 0x7FFFFFFF;
  const int64_t wanted = (rows - 1) / kTeams + 1;
  return static_cast<unsigned>(wanted < limit ? wanted : limit);
}

template <class Args>
cudaError_t launch_rows(const Args& args, int64_t rows, cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  return launch(run_rows<Args>,
                {{blocks_for<Args>(rows), 1, 1}, {kThreads, 1, 1}, shared_bytes<Args>(), stream},
                args, rows);
}

template <class Args>
struct Launches {
  Args args[kMostLaunches];
  int64_t end[kMostLaunches];  // the rows of launches 0 to i together
  int count;
};

template <class Args>
__global__ void __launch_bounds__(kThreads, blocks_at_once<Args>())
    run_batch(const __grid_constant__ Launches<Args> all) {
  constexpr int kSize = kTeamSize<Args>;
  constexpr int64_t kTeams = kThreads / kSize;
  const int64_t rows = all.end[all.count - 1];
  for (int64_t row = blockIdx.x * kTeams + threadIdx.x / kSize; row < rows;
       row += gridDim.x * kTeams) {
    int of = 0;  // the first launch that ends behind the row
    for (int last = all.count - 1; of < last;) {
      const int middle = (of + last) / 2;
      if (all.end[middle] <= row) {
        of = middle + 1;
      } else {
        last = middle;
      }
    }
    const Args args = all.args[of];
    args(TeamOf<kSize>{}, of == 0 ? row : row - all.end[of - 1]);
  }
}

template <class Args>
cudaError_t launch_batch(const Args* args, const int64_t* rows, int launches, cudaStream_t stream) {
  static_assert(sizeof(Launches<Args>) <= 4096);
  Launches<Args> all{};
  int64_t end = 0;
  for (int i = 0; i < launches; ++i) {
    if (rows[i] <= 0) continue;
    end += rows[i];
    all.args[all.count] = args[i];
    all.end[all.count++] = end;
  }
  if (end == 0) return cudaSuccess;
  return launch(run_batch<Args>,
                {{blocks_for<Args>(end), 1, 1}, {kThreads, 1, 1}, shared_bytes<Args>(), stream},
                all);
}

}  // namespace jackscrew::cuda
