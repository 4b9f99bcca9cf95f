// When a run evaluates, and how long it still takes.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace jackscrew {

class RunPace {
 public:
  RunPace() = default;
  // `eval_steps` are the steps from one evaluation to the next; 0: there is one after the last step
  // alone.
  RunPace(int64_t total_steps, int64_t eval_steps)
      : total_steps_(total_steps), eval_steps_(eval_steps) {}

  bool evaluates_after(int64_t step) const {
    return step == total_steps_ || (eval_steps_ > 0 && step % eval_steps_ == 0);
  }

  // An evaluation took so long.
  void evaluated(double seconds);
  // Makes a checkpoint, whose time is no step's.
  template <class Save>
  void save(const Save& save) {
    const Stopwatch watch;
    save();
    saves_ += watch.seconds();
  }
  // The steps after `first` begin.
  void begin(int64_t first);
  // The seconds from the end of step `done` > first to that of the run: steps and checkpoints take
  // as long as those before, and evaluations, that of this step included, as long as the last one.
  // The steps since the last call count as at most ten times as long as those before, or as a
  // hundred of those: a run that was halted for an hour is not slower for that.
  double seconds_left(int64_t done) { return seconds_left(done, watch_.seconds()); }
  // The same, so many seconds after begin().
  double seconds_left(int64_t done, double now);

 private:
  int64_t total_steps_ = 0, eval_steps_ = 0, first_ = 0;
  int64_t counted_ = 0;  // the step of the last call of seconds_left()
  Stopwatch watch_;
  // Seconds; but for the first, of all since begin().
  double last_evaluation_ = 0.0, evaluations_ = 0.0, saves_ = 0.0;
  double passed_ = 0.0, steps_ = 0.0;  // of steps until counted_; what of it counts
};

}  // namespace jackscrew
