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
// the second time it is recorded, and from then on one call launches all of it.
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
    cudaGraphExec_t graph = nullptr;  // null until it is recorded
    bool refused = false;             // the driver would not record it
  };

  Known& find(const std::vector<int64_t>& key);
  // Null if the driver does not record this work, which then has to be issued each time.
  cudaGraphExec_t record(const std::function<void()>& body, cudaStream_t stream);

  std::list<Known> known_;  // the latest first
  RepeatCounts counts_;
};

}  // namespace jackscrew::cuda
