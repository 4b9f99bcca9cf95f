#include "kernels/cuda/marks.h"

#include <utility>

#include "kernels/cuda/check.h"

namespace jackscrew::cuda {

Marks::~Marks() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

void Marks::add(cudaStream_t stream) {
  if (count_ == events_.size()) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDefault), "making an event");
    events_.push_back(event);
  }
  check(cudaEventRecord(events_[count_], stream), "marking a moment");
  ++count_;
}

std::vector<double> Marks::take() {
  std::vector<double> out;
  const size_t count = std::exchange(count_, 0);
  if (count > 0) check(cudaEventSynchronize(events_[count - 1]), "waiting for a moment");
  for (size_t i = 1; i < count; ++i) {
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, events_[i - 1], events_[i]), "measuring a time");
    out.push_back(1e-3 * static_cast<double>(milliseconds));
  }
  return out;
}

}  // namespace jackscrew::cuda
