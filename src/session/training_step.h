// One optimizer step of a stage, in two halves: the gradients of all micro-batches, then the
// update. A step that is cut into lanes, or a model into stages, adds the same sums in the same
// order as one rank that does everything.
#pragma once

#include <memory>
#include <vector>

#include "base/progress_callback.h"
#include "data/batch.h"
#include "learners/learner.h"
#include "optim/gradient_norm.h"
#include "parallel/lanes.h"
#include "session/stage_passes.h"
#include "session/tied_ends.h"

namespace jackscrew {

struct StepResult {
  int64_t step = 0;  // counted from 0
  double loss = 0;   // mean over the step's targets, nats
  double grad_norm = 0;
  bool finite = true;
};

class TrainingStep {
 public:
  struct Settings {
    double max_grad_norm = 0;  // 0: no clipping
    uint64_t seed = 0;
    // Where weights share one gradient; then a step is one micro-batch. Not used: empty.
    const Arena& shared_gradients;
  };
  // Takes the memory that the norm of gradients and their exchange need. Throws Error(usage) as
  // TiedEnds::require_one_update(). All references must outlive this.
  TrainingStep(StagePasses& passes, Learner& learner, const Settings& settings);

  // How many tensors learn, now or later.
  int64_t gradients() const { return std::ssize(gradient_sizes_); }
  // This stage updates a tied embedding that another updates as well.
  bool updates_tied() const { return tied_ends_.learn(); }

  // Call when other gradients or windows have come to be.
  void watch_gradients();

  // See Session: accumulate(), block_passes(), apply(), result() and pass_step().
  void accumulate(const StepBatch& batch, double learning_rate, int64_t step,
                  const ProgressCallback& progress);
  int64_t block_passes(const StepBatch& batch) const;
  void apply(const WeightDecay& weight_decay);
  StepResult result();
  bool pass(int64_t step);

  // Seconds that steps have waited for other ranks so far.
  double seconds_waited() const { return seconds_waited_; }

 private:
  bool begin(Context& run, int64_t step);
  void accumulate_whole(Context& run, const StepBatch& batch);
  void accumulate_parts(Context& run, const StepBatch& batch);
  void end_lane(bool last);
  void sum_lanes();
  void apply_parts(Context& run, const WeightDecay& weight_decay);

  StagePasses& passes_;
  SessionDevice& device_;
  const Place& place_;
  const Stage& stage_;
  Peers& peers_;
  Learner& learner_;
  Settings settings_;
  TiedEnds tied_ends_;
  std::vector<int64_t> gradient_sizes_;  // elements of each gradient that is here or will be
  GradientNorm norm_;
  LaneSums lane_sums_;
  std::vector<double> lane_losses_;  // of this replica's lanes that have ended in this step
  double seconds_waited_ = 0;
  std::unique_ptr<NoAllocation> ban_;  // from accumulate() to apply()
};

}  // namespace jackscrew
