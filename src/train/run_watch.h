// Whether a run should end before its last step, and which of its evaluations was the best.
#pragma once

#include <cstdint>
#include <optional>

#include "base/file.h"
#include "recipe/recipe.h"

namespace jackscrew {

class RunWatch {
 public:
  struct Best {
    int64_t step;
    double loss;
  };

  explicit RunWatch(const WatchOptions& options) : options_(options) {}

  // Takes up what a log holds of the run so far (report/event_log.h), as if it had been told.
  void replay(const fs::path& log);
  // Is told of the loss of every logged step, and of every evaluation after a step.
  void logged(double loss);
  void evaluated(int64_t step, double loss);

  // The evaluations have not become better for as long as they may.
  bool out_of_patience() const;
  // The losses of the last steps were all too high.
  bool barks() const;
  std::optional<Best> best() const { return best_; }

 private:
  WatchOptions options_;
  std::optional<Best> best_;
  int64_t worse_evaluations_ = 0;  // since the best
  int64_t high_losses_ = 0;        // in a row
};

}  // namespace jackscrew
