// Decides whether a run should end early, and which of its evaluations was the best.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/file.h"
#include "recipe/recipe.h"

namespace jackscrew {

class RunWatch {
 public:
  struct Best {
    int64_t step;
    double loss;
    std::string text() const;  // "1.2345 at step 100"
  };

  explicit RunWatch(const WatchSettings& options) : options_(options) {}

  // Replays the log in the run's directory (report/event_log.h): its losses, and which of the
  // evaluations have a checkpoint there. Evaluations of other data than those of its last `start`
  // do not count.
  void replay(const fs::path& output);
  // All that the course of a run depends on here, as one JSON object for its checkpoints: the log
  // may be lost. `held_out` is the fingerprint of what it evaluates on.
  std::string state(const std::string& held_out) const;
  // The most bytes of it.
  static int64_t longest_state();
  // Takes the state that a checkpoint has; returns false where it has none, as those of earlier
  // versions. Evaluations of other data than `held_out` do not count, which is warned of, nor do
  // losses that were above another threshold. Throws Error(model) where it cannot be true.
  bool restore(const fs::path& checkpoint, const std::string& held_out);
  // The loss of a logged step, and the loss of an evaluation after `step` steps.
  void logged(double loss);
  void evaluated(int64_t step, double loss);

  // Looks in the directory of the run, which goes on from there, for what is kept(): the best(),
  // which may be in no log, or else the best evaluation in the log that has a checkpoint.
  void find_kept(const fs::path& output);
  // A checkpoint has the states after `step` steps.
  void saved(int64_t step);
  // The best evaluation whose states a checkpoint has: the disk may have refused that of the
  // best().
  std::optional<Best> kept() const { return kept_; }
  // What kept() is; needs one: "the best evaluation, 1.2345 at step 100", or that it is the best of
  // those that have a checkpoint.
  std::string kept_text() const;
  // Whether the last evaluation was after `step` steps, and better than kept().
  bool beats_kept(int64_t step) const;
  // The step whose states are the best that can be had after `done` steps: those of the kept(), or
  // the present ones.
  int64_t result_step(int64_t done) const;

  // Whether the evaluations have not improved for as long as allowed.
  bool out_of_patience() const;
  // Whether the losses of the last steps were all too high.
  bool losses_too_high() const;
  std::optional<Best> best() const { return best_; }
  // The step of the last evaluation; -1: none.
  int64_t last_evaluated() const { return last_evaluated_; }
  // Its text; needs a best().
  std::string best_text() const { return best_->text(); }
  // Why a run that is out of patience stops: "2 evaluations without improvement: the best is ...".
  // Where it has not trained, also what lets it train.
  std::string why_stopped(bool has_trained = true) const;
  // Why a run is given up whose losses are too high, the last of them `loss`.
  std::string why_given_up(double loss) const;
  // A warning where the result_step() is not that of the best(), else empty.
  std::string best_not_kept(int64_t done) const;
  // A warning where no evaluation was better than that before training, else empty.
  std::string nothing_gained() const;

 private:
  WatchSettings options_;
  std::optional<double> untrained_;  // the loss before step 1
  std::optional<Best> best_;         // of the evaluations after it
  std::optional<Best> last_;         // of them, in this process or in the log
  std::optional<Best> kept_;
  int64_t last_evaluated_ = -1;
  int64_t worse_evaluations_ = 0;  // since the best
  int64_t high_losses_ = 0;        // in a row
};

}  // namespace jackscrew
