// The trainer: runs a recipe from reading its inputs to writing its result.
#pragma once

#include <memory>
#include <utility>

#include "parallel/transport.h"
#include "recipe/recipe.h"
#include "train/train_console.h"

namespace jackscrew {

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
