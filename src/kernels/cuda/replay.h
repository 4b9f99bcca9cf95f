// Repeated work, as CUDA graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <list>
#include <vector>

#include "kernels/ops.h"

namespace jackscrew::cuda {

// See Ops::repeat. The first time the work only runs, which lets the library choose its algorithms;
// the second time it is recorded, and from then on one call launches all of it. Of more kinds of
// work than there is room for graphs, those are recorded that come most often.
class Replay {
 public:
  Replay() = default;
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  void run(const std::vector<int64_t>& key, const std::function<void()>& body, cudaStream_t stream);
  // Drops all recordings, none of which may be running.
  void forget();
  const RepeatCounts& counts() const { return counts_; }

 private:
  struct Known {
    std::vector<int64_t> key;
    int64_t runs = 0;
    cudaGraphExec_t graph = nullptr;  // null until it is recorded
    bool refused = false;             // the driver would not record it
  };

  Known& find(const std::vector<int64_t>& key);
  // Waits for the work and drops its graph, if it has one.
  static void drop_graph(Known& known, cudaStream_t stream);
  // Whether there is room for a graph of `known`, for which another may have to go.
  bool has_room_for(const Known& known, cudaStream_t stream);
  // Null if the driver does not record this work, which then has to be issued each time.
  cudaGraphExec_t record(const std::function<void()>& body, cudaStream_t stream);

  std::list<Known> known_;  // the latest first
  RepeatCounts counts_;
};

}  // namespace jackscrew::cuda
