// Measures and quantises the blocks of a model on calibration text, one after another. Each
// finished block is saved at once, and an interrupted command continues after it.
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

// The peak of memory that the functions below book, bytes: measuring on a text of that size, where
// the rounder does, and rounding on another.
int64_t blocks_memory(const Recipe& recipe, const ModelFiles& files, const Rounder& rounder,
                      const CalibrationSize& measured, const CalibrationSize& text,
                      const std::optional<WeightSpec>& head);

// Lets the rounder measure the blocks' matrices over the unquantised model. Returns the peak of
// memory, bytes.
int64_t measure_blocks(const BlockWork& work, const CalibrationText& text);

// Quantises the matrices of the blocks, then the head if `head` is given (its spec in the files). A
// layer reads the calibration text as the quantised layers before it transform it. Returns the peak
// of memory, bytes.
int64_t round_blocks(const BlockWork& work, const CalibrationText& text,
                     const std::optional<WeightSpec>& head);

}  // namespace jackscrew
