#include "kernels/cuda/replay.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/check.h"

namespace jackscrew::cuda {

namespace {

// A run that repeats itself has two: a micro-batch and the update, and a third where the last
// micro-batch of an epoch is short. A graph of a large model takes the driver a few MiB.
constexpr size_t kMostKnown = 8;

// Null where the driver does not record this work: it then has to run as it is.
cudaGraphExec_t record(const std::function<void()>& body, cudaStream_t stream) {
  if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  bool issued = true;
  try {
    body();
  } catch (const Error&) {
    issued = false;  // if it was not for the recording, it comes again when the work itself runs
  } catch (...) {
    cudaGraph_t none = nullptr;
    cudaStreamEndCapture(stream, &none);
    throw;
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t out = nullptr;
  const bool whole = cudaStreamEndCapture(stream, &graph) == cudaSuccess && issued;
  if (whole && cudaGraphInstantiate(&out, graph, 0) != cudaSuccess) out = nullptr;
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();  // what was said of the attempt
  return out;
}

}  // namespace

Replay::~Replay() {
  forget();
}

void Replay::forget() {
  for (const Known& known : known_) {
    if (known.graph != nullptr) cudaGraphExecDestroy(known.graph);
  }
  known_.clear();
}

Replay::Known& Replay::find(const std::vector<int64_t>& key) {
  const auto found = std::find_if(known_.begin(), known_.end(),
                                  [&](const Known& known) { return known.key == key; });
  if (found != known_.end()) {
    known_.splice(known_.begin(), known_, found);
  } else {
    known_.push_front({key});
  }
  return known_.front();
}

void Replay::run(const std::vector<int64_t>& key, const std::function<void()>& body,
                 cudaStream_t stream) {
  const size_t before = known_.size();
  Known& known = find(key);
  const bool is_new = known_.size() > before;
  if (known_.size() > kMostKnown) {
    // Its last launch may still be under way.
    check(cudaStreamSynchronize(stream), "waiting for recorded work");
    if (known_.back().graph != nullptr) cudaGraphExecDestroy(known_.back().graph);
    known_.pop_back();
  }
  if (!is_new && known.graph == nullptr && !known.refused) {
    known.graph = record(body, stream);
    known.refused = known.graph == nullptr;
  }
  if (known.graph == nullptr) return body();
  check(cudaGraphLaunch(known.graph, stream), "launching recorded work");
}

}  // namespace jackscrew::cuda
