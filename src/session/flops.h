// The arithmetic of a step, counted. A run prints its share of the machine's peak as its share of
// the speed of light.
#pragma once

#include "data/batch.h"
#include "model/stage.h"

namespace jackscrew {

// Floating-point operations (two per multiply-add) of the matrix products and attention of one
// training step: backward ends at the lowest block that learns. Recomputation is not counted: it is
// a choice, not work asked for.
double training_flops(const Stage& stage, const StepBatch& batch);

}  // namespace jackscrew
