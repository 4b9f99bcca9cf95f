// The blocks of a model on calibration text, measured and rounded one after another. What a block
// has become is kept as soon as it is known, and a command that was stopped goes on behind it.
#pragma once

#include <optional>

#include "conversion/calibration.h"
#include "conversion/quantise_checkpoint.h"
#include "conversion/rounder.h"
#include "report/progress.h"

namespace jackscrew {

struct BlockWork {
  const Recipe& recipe;
  const ModelFiles& files;
  const Rounder& rounder;
  QuantisationCheckpoint& checkpoint;
  const ProgressStyle& style;
};

// Lets the rounder measure the matrices of the blocks, over the model as it is. Returns the most
// memory that was taken.
int64_t measure_blocks(const BlockWork& work, const CalibrationText& text);

// Rounds the matrices of the blocks and then the head, if it is given as what it is rounded as.
// What a block reads is what those before it, already rounded, make of the text. Returns the most
// memory that was taken.
int64_t round_blocks(const BlockWork& work, const CalibrationText& text,
                     const std::optional<WeightSpec>& head);

}  // namespace jackscrew
