// The arithmetic of a step, counted: its distance from the machine's peak is what a run prints as
// its share of the speed of light.
#pragma once

#include "data/batch.h"
#include "model/stage.h"

namespace jackscrew {

// Multiply-adds times two of the matrix products and attention of one training step, recomputation
// not counted: it is a choice, not work asked for.
double training_flops(const Stage& stage, const StepBatch& batch);

}  // namespace jackscrew
