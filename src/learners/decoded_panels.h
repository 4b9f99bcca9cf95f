// A weight's values in f32, a panel of rows after another: for learners that read all of it once.
#pragma once

#include <algorithm>

#include "kernels/context.h"
#include "quant/weight.h"

namespace jackscrew {

// Calls body(values, begin, end) with rows [begin, end) of the weight, until it has had all of
// them. They are in scratch memory, for the call alone. On the plan device there is one call: no
// panel is larger than the first.
template <class Body>
void for_decoded_panels(Context& context, const Weight& weight, const Body& body) {
  const Arena::Frame frame(context.scratch);
  const int64_t rows = weight.rows(), cols = weight.cols();
  const int64_t step =
      std::min(rows, panel_rows(cols, dtype_size(DType::f32), context.ops.panel_bytes()));
  const Tensor panel = context.scratch.tensor(DType::f32, {step, cols});
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(rows, begin + step);
    const Tensor values = panel.rows(0, end - begin);
    weight.decode(context.ops, begin, end, values);
    body(values, begin, end);
    if (context.ops.plans_only()) return;
  }
}

}  // namespace jackscrew
