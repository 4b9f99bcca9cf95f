// A micro-batch in flight: its tokens on the device, and what forward leaves there for backward. A
// session has one; a pipeline stage has one for itself and one for each stage after it, at most.
#pragma once

#include "data/batch.h"
#include "model/stage.h"
#include "parallel/transport.h"

namespace jackscrew {

// Tokens and targets of a step that come before a micro-batch.
struct CountsBefore {
  int64_t tokens = 0, targets = 0;
};

class MicroBatchBuffers {
 public:
  // Allocates room for micro-batches of at most `tokens` tokens in `memory`; what forward leaves
  // lies in `stash`.
  MicroBatchBuffers(Memory& memory, int64_t tokens, Arena stash);

  // Copies a micro-batch to the device. The Batch is valid until the next call. Throws
  // Error(generic) when it has too many tokens.
  Batch upload(Ops& ops, const MicroBatch& batch, const CountsBefore& before = {});
  // Returns an empty stash, and invalidates the one before.
  Stash begin(bool keep, bool recompute);
  // The most bytes that a stash has taken.
  int64_t stash_bytes() const { return stash_.high_water(); }

 private:
  int64_t tokens_;
  Arena stash_;
  OwnedTensor ids_, positions_;        // i32 [tokens]
  OwnedTensor cu_seqlens_;             // i32 [tokens + 1]
  OwnedTensor target_rows_, targets_;  // i32 [tokens]
  OwnedTensor counts_before_;          // i64 [2], see Batch
};

// A micro-batch between its forward and its backward pass.
struct InFlight {
  MicroBatchBuffers buffers;
  Batch batch = {};
  Stash stash = {};
  Tensor stream = {};    // f32 [tokens, hidden], the residual stream after this stage, in the stash
  Tensor gradient = {};  // of it, likewise; of the last stage its own
  Ticket stream_sent = {}, gradient_sent = {};
  // f32 [tokens, hidden] on the host: the stream, then the gradient, on their way between stages.
  // Empty where they can be sent as they lie on the device.
  OwnedTensor staged = {};
};

}  // namespace jackscrew
