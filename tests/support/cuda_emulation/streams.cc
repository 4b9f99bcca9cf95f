#include "tests/support/cuda_emulation/streams.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/cuda_emulation/device_pages.h"
#include "tests/support/cuda_emulation/machine.h"

using Work = std::function<void()>;

struct EmulatedGraph {
  std::vector<Work> work;
};

struct EmulatedGraphExec {
  std::shared_ptr<const std::vector<Work>> work;
};

struct EmulatedStream {
  bool eager = false;
  std::deque<Work> waiting;
  int64_t given = 0, done = 0;
  std::unique_ptr<EmulatedGraph> recorded;  // while it is captured
  bool spoilt = false;                      // something was done that a capture does not allow

  void run_to(int64_t position) {
    if (done >= position) return;
    // Once for all of it: opening and closing takes longer than most kernels.
    const jackscrew::OpenedPages opened(jackscrew::cuda_emulation::device_pages());
    while (done < position) {
      const Work work = std::move(waiting.front());
      waiting.pop_front();
      work();
      ++done;
    }
  }
};

// A moment of a stream; of none until it is recorded.
struct EmulatedEvent {
  EmulatedStream* stream = nullptr;
  int64_t position = 0;
  bool captured = false;  // of a recording, and not of time
  bool timed = false;
};

namespace {

std::recursive_mutex runtime;
bool eager = false;
std::set<EmulatedStream*> streams;
int64_t launches = 0;

// A stream may be gone when somebody waits for a moment of it, which is then over.
void run_to(EmulatedStream* stream, int64_t position) {
  if (streams.contains(stream)) stream->run_to(position);
}

}  // namespace

namespace jackscrew::cuda_emulation {

Locked::Locked() {
  runtime.lock();
}
Locked::~Locked() {
  runtime.unlock();
}

void enqueue(cudaStream_t stream, Work work) {
  const Locked lock;
  if (stream == nullptr) return work();
  if (stream->recorded) return stream->recorded->work.push_back(std::move(work));
  stream->waiting.push_back(std::move(work));
  ++stream->given;
  if (stream->eager) stream->run_to(stream->given);
}

bool refuse_in_capture() {
  bool refused = false;
  for (EmulatedStream* stream : streams) {
    if (stream->recorded == nullptr) continue;
    stream->spoilt = true;
    refused = true;
  }
  return refused;
}

EagerStreams::EagerStreams() {
  eager = true;
}
EagerStreams::~EagerStreams() {
  eager = false;
}

int64_t graph_launches() {
  return launches;
}

}  // namespace jackscrew::cuda_emulation

using jackscrew::cuda_emulation::enqueue;
using jackscrew::cuda_emulation::Locked;
using jackscrew::cuda_emulation::refuse_in_capture;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Locked lock;
  *stream = new EmulatedStream;
  (*stream)->eager = eager;
  streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Locked lock;
  stream->run_to(stream->given);
  streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Locked lock;
  if (refuse_in_capture()) return cudaErrorStreamCaptureUnsupported;
  if (stream != nullptr) stream->run_to(stream->given);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Locked lock;
  if (refuse_in_capture()) return cudaErrorStreamCaptureUnsupported;
  for (EmulatedStream* stream : streams) stream->run_to(stream->given);
  return cudaSuccess;
}
// A captured stream may wait for what is captured along with it alone; here that is itself.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Locked lock;
  const bool captured = stream != nullptr && stream->recorded != nullptr;
  if (captured != event->captured || (captured && event->stream != stream)) {
    refuse_in_capture();
    return cudaErrorStreamCaptureIsolation;
  }
  if (captured) return cudaSuccess;
  enqueue(stream, [moment = *event] {
    if (moment.stream != nullptr) run_to(moment.stream, moment.position);
  });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const Locked lock;
  *event = new EmulatedEvent;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Locked lock;
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Locked lock;
  *event = {stream, stream == nullptr ? 0 : stream->given,
            stream != nullptr && stream->recorded != nullptr, event->timed};
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Locked lock;
  if (refuse_in_capture()) return cudaErrorStreamCaptureUnsupported;
  if (event->captured) return cudaErrorCapturedEvent;
  if (event->stream != nullptr) run_to(event->stream, event->position);
  return jackscrew::cuda_emulation::reach_gpu();
}
// Every piece of work takes a millisecond.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const Locked lock;
  for (const cudaEvent_t event : {begin, end}) {
    if (!event->timed || event->stream == nullptr || event->captured) {
      return cudaErrorInvalidResourceHandle;
    }
    if (event->position > event->stream->done) return cudaErrorNotReady;
  }
  *milliseconds = static_cast<float>(end->position - begin->position);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Locked lock;
  if (stream == nullptr || stream->recorded) return cudaErrorStreamCaptureUnsupported;
  stream->recorded = std::make_unique<EmulatedGraph>();
  stream->spoilt = false;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Locked lock;
  const bool recorded = stream != nullptr && stream->recorded;
  *status = recorded ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Locked lock;
  *graph = nullptr;
  if (stream->recorded == nullptr) return cudaErrorInvalidValue;
  const std::unique_ptr<EmulatedGraph> recorded = std::move(stream->recorded);
  if (stream->spoilt) return cudaErrorStreamCaptureInvalidated;
  *graph = new EmulatedGraph(*recorded);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const Locked lock;
  *exec = new EmulatedGraphExec{std::make_shared<std::vector<Work>>(graph->work)};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const Locked lock;
  ++launches;
  enqueue(stream, [work = exec->work] {
    for (const Work& one : *work) one();
  });
  return jackscrew::cuda_emulation::reach_gpu();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Locked lock;
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  const Locked lock;
  delete exec;
  return cudaSuccess;
}
}
