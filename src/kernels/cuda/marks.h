// Marks moments of a stream, and measures the time between them.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

namespace jackscrew::cuda {

// See Ops::mark(). Events are created as needed and reused.
class Marks {
 public:
  Marks() = default;
  ~Marks();
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  void add(cudaStream_t stream);
  // Seconds; one fewer than there were marks.
  std::vector<double> take();

 private:
  std::vector<cudaEvent_t> events_;
  size_t count_ = 0;
};

}  // namespace jackscrew::cuda
