// A sum of tensors: the kernel AddScaled of kernels/rows/loss.rows.h.
#pragma once

#include "base/checked.h"
#include "kernels/ops.h"
#include "kernels/rows/loss.rows.h"

namespace jackscrew {

// to += factor * from, both f32, contiguous and of one size.
inline void add_scaled(Ops& ops, const Tensor& to, const Tensor& from, double factor = 1.0) {
  ops.launch(AddScaled{from.data<float>(), to.data<float>(), static_cast<float>(factor), to.size()},
             ceil_div(to.size(), AddScaled::kChunk));
}

}  // namespace jackscrew
