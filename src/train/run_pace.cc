#include "train/run_pace.h"

#include <algorithm>

namespace jackscrew {

void RunPace::evaluated(double seconds) {
  last_evaluation_ = seconds;
  evaluations_ += seconds;
}

void RunPace::begin(int64_t first) {
  first_ = counted_ = first;
  watch_ = Stopwatch();
  evaluations_ = saves_ = passed_ = steps_ = 0.0;
}

double RunPace::seconds_left(int64_t done, double now) {
  const double passed = now - evaluations_ - saves_;
  double seconds = passed - passed_;
  if (counted_ > first_) {
    const double before = steps_ / static_cast<double>(counted_ - first_);
    const auto steps = static_cast<double>(done - counted_);
    seconds = std::min(seconds, 10 * before * std::max(steps, 10.0));
  }
  passed_ = passed;
  steps_ += seconds;
  counted_ = done;
  const double step = (steps_ + saves_) / static_cast<double>(done - first_);
  int64_t evaluations = 1;
  if (eval_steps_ > 0) {
    const bool extra = total_steps_ % eval_steps_ != 0;  // after the last step
    evaluations = total_steps_ / eval_steps_ - (done - 1) / eval_steps_ + (extra ? 1 : 0);
  }
  return step * static_cast<double>(total_steps_ - done) +
         last_evaluation_ * static_cast<double>(evaluations);
}

}  // namespace jackscrew
