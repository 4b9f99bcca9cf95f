// Forward and backward of micro-batches through the stage of this rank, with what it receives from
// the stages beside it and sends to them. A whole model is one stage, which has no others.
#pragma once

#include <vector>

#include "base/progress_callback.h"
#include "data/batch.h"
#include "model/stage.h"
#include "parallel/peers.h"
#include "session/micro_batch_buffers.h"
#include "session/place.h"
#include "session/session_device.h"

namespace jackscrew {

// The work of a session that is repeated (Ops::repeat): the first number of its key.
inline constexpr int64_t kMicroBatchWork = 0, kUpdateWork = 1, kTokenWork = 2;

class StagePasses {
 public:
  // `flights` are as many as are in flight at once, at least one. `recompute`: backward computes
  // the blocks' activations again. All references must outlive this.
  StagePasses(SessionDevice& device, const Place& place, const Stage& stage, Peers& peers,
              std::vector<InFlight> flights, bool recompute);

  SessionDevice& device() { return device_; }
  const Place& place() const { return place_; }
  const Stage& stage() const { return stage_; }
  Peers& peers() { return peers_; }

  // The first flight, for work that has one micro-batch at a time.
  InFlight& single() { return flights_.front(); }

  // Of a whole model: adds the gradients and losses of a micro-batch in single().batch.
  void forward_and_backward(Context& run);

  // The same in halves, for one of several stages. Every stage runs forward here; in the last one
  // the backward pass follows at once. `slot` is a flight whose backward pass is done.
  void forward(Context& run, const MicroBatch& micro_batch, const CountsBefore& before,
               int64_t slot);
  void backward(Context& run, int64_t slot);
  void wait_for_sends();

  // Forward of flight.batch with nothing kept for backward. Returns the residual stream after this
  // stage, f32 [tokens, hidden], valid until the next pass. Where `cached_tokens` are not 0, the
  // cache lies at the beginning of the stash, with room for so many.
  Tensor through(Context& run, InFlight& flight, KvCache* cache = nullptr,
                 int64_t cached_tokens = 0);

  // See Session::losses().
  std::vector<double> losses(const StepBatch& batch, const ProgressCallback& progress);

 private:
  SessionDevice& device_;
  const Place& place_;
  const Stage& stage_;
  Peers& peers_;
  std::vector<InFlight> flights_;
  bool recompute_;
};

}  // namespace jackscrew
