// Launches of one kernel by parts of a work that have nothing to do with one another, as one: what
// a GPU does for thousands of small tensors takes longer to launch than to do.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/row_kernel.h"

namespace jackscrew::cuda {

// See Ops::in_batches. Launches wait, those of one kernel together, until there are kMostLaunches
// of them or something else is to be issued. Kernels are in the order in which the parts launch
// them: a part that has launched a kernel and then launches an earlier one has all issued first.
class Batches {
 public:
  void run(const std::function<void()>& body, cudaStream_t stream);
  void begin_part() { reached_ = -1; }

  // Whether the launch waits; otherwise it is to be issued now.
  bool add(const RowKernel& kernel, const void* args, int64_t rows, cudaStream_t stream);
  // Issues what waits.
  void issue(cudaStream_t stream) { issue_to(std::ssize(waiting_) - 1, stream); }

 private:
  struct Waiting {
    const RowKernel* kernel;
    std::vector<std::byte> args;  // one after another
    std::vector<int64_t> rows;    // of each
  };

  // Issues what waits of kernels [0, last].
  void issue_to(int64_t last, cudaStream_t stream);

  bool active_ = false;
  std::vector<Waiting> waiting_;
  int64_t reached_ = -1;  // the last kernel of waiting_ that the part has launched
};

}  // namespace jackscrew::cuda
