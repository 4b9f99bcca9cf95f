// The trainer: a recipe from its first byte read to its last byte written.
#pragma once

#include <atomic>
#include <cstdio>

#include "parallel/transport.h"
#include "recipe/recipe.h"
#include "report/progress.h"

namespace jackscrew {

// Where a run speaks, and how it is told to stop.
struct TrainConsole {
  std::FILE* out = stdout;                  // step lines and summaries
  ProgressStyle style;                      // of progress bars on stderr
  bool colour = false;                      // in what goes to `out`
  int width = 0;                            // columns of `out`; 0 where it is no terminal
  const std::atomic<bool>* stop = nullptr;  // set: save a checkpoint after this step and stop
  std::atomic<bool>* save = nullptr;        // set: save one after this step and go on; cleared then
};

// A file of this name in output_dir asks for a checkpoint after the present step, and goes then.
inline constexpr const char* kSaveTrigger = "checkpoint.save";

// An error in the midst of work that other ranks share, in a run of several: they wait for what
// will not come. Whoever catches it must abort() the transport.
class RanksLost : public Error {
 public:
  explicit RanksLost(const Error& error) : Error(error) {}
};

// Trains as the recipe says and leaves in output_dir: checkpoints, train_log.jsonl, TensorBoard
// events, recipe.yaml, report.html and the result. Throws Error(interrupted) after a stop, its
// checkpoint saved, and Error(non_finite) when loss or gradients are not finite, the weights left
// as they were.
// With a transport, this is rank 0 of its ranks, and the others serve() (train/worker.h) until
// then; throws RanksLost where they cannot be told that it is over.
void train(const Recipe& recipe, const TrainConsole& console, Transport* transport = nullptr);

}  // namespace jackscrew
