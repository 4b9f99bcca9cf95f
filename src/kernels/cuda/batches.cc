#include "kernels/cuda/batches.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/check.h"

namespace jackscrew::cuda {

void Batches::run(const std::function<void()>& body, cudaStream_t stream) {
  if (active_) fail(ErrorKind::generic, "batches of launches within batches");
  // What waits when body() throws is never issued.
  struct End {
    Batches& batches;
    ~End() {
      batches.active_ = false;
      batches.waiting_.clear();
    }
  } const end{*this};
  active_ = true;
  begin_part();
  body();
  issue(stream);
}

bool Batches::add(const RowKernel& kernel, const void* args, int64_t rows, cudaStream_t stream) {
  if (!active_) return false;
  if (kernel.cuda_batch == nullptr) {
    issue(stream);
    return false;
  }
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
    return waiting.kernel == &kernel;
  });
  int64_t place = found - waiting_.begin();
  if (place <= reached_) {
    issue(stream);
  } else if (found == waiting_.end()) {
    waiting_.push_back({&kernel, {}, {}});
  } else if (std::ssize(found->rows) == kMostLaunches) {
    issue_to(place, stream);
  }
  Waiting& waiting = waiting_[static_cast<size_t>(place)];
  const auto* const bytes = static_cast<const std::byte*>(args);
  waiting.args.insert(waiting.args.end(), bytes, bytes + kernel.args_bytes);
  waiting.rows.push_back(rows);
  reached_ = place;
  return true;
}

void Batches::issue_to(int64_t last, cudaStream_t stream) {
  for (int64_t i = 0; i <= last; ++i) {
    Waiting& waiting = waiting_[static_cast<size_t>(i)];
    if (waiting.rows.empty()) continue;
    check(waiting.kernel->cuda_batch(waiting.args.data(), waiting.rows.data(),
                                     static_cast<int>(waiting.rows.size()), stream),
          waiting.kernel->name);
    waiting.args.clear();
    waiting.rows.clear();
  }
}

}  // namespace jackscrew::cuda
