// The trainer: runs a recipe from reading its inputs to writing its result.
#pragma once

#include <atomic>
#include <cstdio>
#include <memory>
#include <utility>

#include "parallel/transport.h"
#include "recipe/recipe.h"
#include "report/progress.h"

namespace jackscrew {

// What a run is doing, which says when a stop takes effect.
enum class RunPhase {
  begins,         // until the first step: a stop ends it at once
  steps,          // after the current step
  writes_result,  // once the result is written
  answers,        // after the current answer for the report
  exports         // at once
};

// Where a run prints, and how it is asked to save or stop.
struct TrainConsole {
  std::FILE* out = stdout;                  // step lines and summaries
  ProgressStyle style;                      // of progress bars on stderr
  bool colour = false;                      // in what goes to `out`
  int width = 0;                            // columns of `out`; 0: not a terminal
  const std::atomic<bool>* stop = nullptr;  // set: save a checkpoint after this step and stop
  std::atomic<bool>* save = nullptr;        // set: save one after this step; then cleared
  std::atomic<RunPhase>* phase = nullptr;   // the run says here what it is doing
};

// A file of this name in output_dir requests a checkpoint after the present step; it is then
// removed.
inline constexpr const char* kSaveTrigger = "checkpoint.save";

// An error within work that other ranks share: they wait for this rank and cannot be told. Whoever
// catches it must abort() the transport while the error lives: it holds this rank's part of the
// run, from whose memory messages may still be on their way.
class RanksLost : public Error {
 public:
  RanksLost(const Error& error, std::shared_ptr<const void> run)
      : Error(error), run_(std::move(run)) {}

 private:
  std::shared_ptr<const void> run_;
};

// Trains as the recipe says. Leaves in output_dir: checkpoints, train_log.jsonl, TensorBoard
// events, recipe.yaml, report.html and the result. Throws Error(interrupted) after a stop, with a
// checkpoint saved, and Error(non_finite) when loss or gradients are not finite, with the weights
// as they were before.
// With a transport this is rank 0, and the other ranks serve() (train/worker.h) until it ends.
// Throws RanksLost where they cannot be told that it has ended.
void train(const Recipe& recipe, const TrainConsole& console, Transport* transport = nullptr);

}  // namespace jackscrew
