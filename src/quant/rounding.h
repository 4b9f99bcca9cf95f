// How encoding rounds a number that lies between two codes.
#pragma once

#include "base/philox.h"
#include "kernels/row_math.h"
#include "kernels/step_scalars.h"

namespace jackscrew {

struct Rounding {
  // Stochastic: one code or the other, so that the expected value is the number. Else the nearest.
  bool stochastic = false;
  // In device memory: seed and step of the random numbers, and whether the step is finite.
  const StepScalars* scalars = nullptr;
  uint32_t tensor = 0;  // hash of the weight's name
  // The numbers are those in the storage, moved a little: a group keeps its scale while that still
  // fits (each format says when), and a step that is not finite leaves every byte unchanged.
  bool in_place = false;
};

// Whether the storage is to stay as it is.
JACKSCREW_ROW bool keeps_storage(const Rounding& rounding) {
  return rounding.in_place && rounding.scalars->finite == 0;
}

// The random numbers of a stochastic rounding; its index is the element's in its matrix,
// or counts blocks of 64 elements (put_rounded in group_row.h).
JACKSCREW_ROW RandomStream rounding_stream(const Rounding& rounding) {
  return RandomStream::make(rounding.scalars->seed, RandomPurpose::rounding, rounding.scalars->step,
                            rounding.tensor);
}

}  // namespace jackscrew
