// Streams of the emulated GPU. What is given to one waits there until somebody waits for it: a
// stream does as late as it may what others have to wait for, so that a wait that is missing shows
// as what had not been done yet.
#pragma once

#include <cstdint>
#include <functional>

#include "tests/support/cuda_emulation/cuda_runtime_api.h"

namespace jackscrew::cuda_emulation {

// The ranks of a run may be threads that share the GPU: whoever calls the runtime, or does what was
// given to a stream, holds this. Nothing else of the emulation knows of threads.
class Locked {
 public:
  Locked();
  ~Locked();
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
};

// Gives the stream work, or does it at once: on the null stream, and on streams that are eager. A
// stream that is captured only records it.
void enqueue(cudaStream_t stream, std::function<void()> work);

// Whether some stream is captured, when what the caller does is not allowed: its capture then ends
// in an error.
bool refuse_in_capture();

// Streams that are made while one of these lives do everything at once: for tests whose memory is
// the host's and who look at it without a wait.
class EagerStreams {
 public:
  EagerStreams();
  ~EagerStreams();
  EagerStreams(const EagerStreams&) = delete;
  EagerStreams& operator=(const EagerStreams&) = delete;
};

// How many recorded graphs have been launched.
int64_t graph_launches();

}  // namespace jackscrew::cuda_emulation
