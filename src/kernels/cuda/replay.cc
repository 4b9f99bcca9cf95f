#include "kernels/cuda/replay.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/check.h"

namespace jackscrew::cuda {

namespace {

// A run that repeats itself has two graphs, of a micro-batch and of the update, and a third where
// the last micro-batch of an epoch is short. A graph of a large model takes the driver a few MiB.
constexpr size_t kMostGraphs = 8;
// Between two updates lie as many micro-batches as are accumulated, each perhaps of a shape of its
// own.
constexpr size_t kMostKnown = 256;

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

cudaGraphExec_t Replay::record(const std::function<void()>& body, cudaStream_t stream) {
  std::string refusal;
  const auto works = [&](cudaError_t status, const char* what) {
    if (status != cudaSuccess && refusal.empty()) {
      refusal = fmt::format("{}: {}", what, cudaGetErrorString(status));
    }
    return status == cudaSuccess;
  };
  cudaGraphExec_t out = nullptr;
  if (works(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "starting")) {
    try {
      body();
    } catch (const Error& error) {
      refusal = error.what();  // if recording was not the cause, it comes again without it
    } catch (...) {
      cudaGraph_t none = nullptr;
      cudaStreamEndCapture(stream, &none);
      throw;
    }
    cudaGraph_t graph = nullptr;
    const bool whole = works(cudaStreamEndCapture(stream, &graph), "ending") && refusal.empty();
    if (whole && !works(cudaGraphInstantiate(&out, graph, 0), "preparing the graph")) out = nullptr;
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
  cudaGetLastError();  // clears the error of the attempt
  if (out != nullptr) {
    ++counts_.recorded;
  } else if (counts_.refused++ == 0) {
    counts_.refusal = refusal;
  }
  return out;
}

Replay::Known& Replay::find(const std::vector<int64_t>& key) {
  const auto found = std::find_if(known_.begin(), known_.end(),
                                  [&](const Known& known) { return known.key == key; });
  if (found != known_.end()) {
    known_.splice(known_.begin(), known_, found);
  } else {
    known_.emplace_front().key = key;
  }
  return known_.front();
}

void Replay::drop_graph(Known& known, cudaStream_t stream) {
  if (known.graph == nullptr) return;
  // Its last launch may still be under way.
  check(cudaStreamSynchronize(stream), "waiting for recorded work");
  cudaGraphExecDestroy(known.graph);
  known.graph = nullptr;
}

bool Replay::has_room_for(const Known& known, cudaStream_t stream) {
  size_t graphs = 0;
  Known* rarest = nullptr;  // of equal ones the one that ran the longest ago
  for (Known& other : known_) {
    if (other.graph == nullptr) continue;
    ++graphs;
    if (rarest == nullptr || other.runs <= rarest->runs) rarest = &other;
  }
  if (graphs < kMostGraphs) return true;
  if (rarest->runs >= known.runs) return false;
  drop_graph(*rarest, stream);
  return true;
}

void Replay::run(const std::vector<int64_t>& key, const std::function<void()>& body,
                 cudaStream_t stream) {
  Known& known = find(key);
  ++known.runs;
  if (known_.size() > kMostKnown) {
    drop_graph(known_.back(), stream);
    known_.pop_back();
  }
  const bool comes_again = known.runs > 1 && known.graph == nullptr && !known.refused;
  if (comes_again && has_room_for(known, stream)) {
    known.graph = record(body, stream);
    known.refused = known.graph == nullptr;
  }
  if (known.graph == nullptr) {
    ++counts_.issued;
    return body();
  }
  ++counts_.replayed;
  check(cudaGraphLaunch(known.graph, stream), "launching recorded work");
}

}  // namespace jackscrew::cuda
