#include "train/run_pace.h"

namespace jackscrew {

void RunPace::evaluated(double seconds) {
  last_evaluation_ = seconds;
  evaluations_ += seconds;
}

void RunPace::begin(int64_t first) {
  first_ = first;
  watch_ = Stopwatch();
  evaluations_ = 0.0;
}

double RunPace::seconds_left(int64_t done) const {
  const double step = (watch_.seconds() - evaluations_) / static_cast<double>(done - first_);
  int64_t evaluations = 1;
  if (eval_steps_ > 0) {
    const bool extra = total_steps_ % eval_steps_ != 0;  // after the last step
    evaluations = total_steps_ / eval_steps_ - (done - 1) / eval_steps_ + (extra ? 1 : 0);
  }
  return step * static_cast<double>(total_steps_ - done) +
         last_evaluation_ * static_cast<double>(evaluations);
}

}  // namespace jackscrew
