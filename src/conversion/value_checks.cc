#include "conversion/value_checks.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace jackscrew {

bool all_finite(const Tensor& w) {
  const float* values = w.data<float>();
  return std::all_of(values, values + w.size(), [](float value) { return std::isfinite(value); });
}

void check_finite(const WeightSpec& weight, const Tensor& w) {
  if (all_finite(w)) return;
  throw Error(ErrorKind::non_finite, fmt::format("{} has values that are not finite", weight.name),
              "the file is damaged, or its training went wrong");
}

void fail_beyond_f16(const WeightSpec& weight, const char* layout) {
  throw Error(
      ErrorKind::model,
      fmt::format("{} has values beyond those of f16, which {} decodes to", weight.name, layout),
      "such a model cannot be rounded so; its training may have gone wrong");
}

void fail_below_f16(const WeightSpec& weight, float largest) {
  throw Error(ErrorKind::model,
              fmt::format("{} has values of at most {:.3g}, too small for scales of f16: most of "
                          "them would become 0",
                          weight.name, largest),
              "format=bnb, whose scales are f32, can hold them");
}

}  // namespace jackscrew
