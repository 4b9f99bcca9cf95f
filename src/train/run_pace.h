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
  // The steps after `first` begin.
  void begin(int64_t first);
  // The seconds from the end of step `done` > first to that of the run: steps take as long as those
  // before, and evaluations, that of this step included, as long as the last one.
  double seconds_left(int64_t done) const;

 private:
  int64_t total_steps_ = 0, eval_steps_ = 0, first_ = 0;
  Stopwatch watch_;
  double last_evaluation_ = 0.0, evaluations_ = 0.0;  // seconds; of all since begin()
};

}  // namespace jackscrew
