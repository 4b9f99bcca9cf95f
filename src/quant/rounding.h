// How encoding treats a number between two codes.
#pragma once

#include "base/philox.h"
#include "kernels/row_math.h"
#include "kernels/step_scalars.h"

namespace jackscrew {

struct Rounding {
  // One code or the other, so that the number itself is what is expected; else the nearest.
  bool stochastic = false;
  const StepScalars* scalars = nullptr;  // seed and step of the random numbers, in device memory
  uint32_t tensor = 0;                   // hash of the weight's name
};

// The random numbers of a stochastic rounding; the index is that of the element in its matrix.
JACKSCREW_ROW RandomStream rounding_stream(const Rounding& rounding) {
  return RandomStream::make(rounding.scalars->seed, RandomPurpose::rounding, rounding.scalars->step,
                            rounding.tensor);
}

}  // namespace jackscrew
