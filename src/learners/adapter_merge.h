// An adapter as a part of its model: what a weight is when both are one.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>

#include "kernels/ops.h"

namespace jackscrew {

// The values of an adapter's tensor of that shape, f32 on the host, by the name that slots give it;
// they outlive whoever asks. Throws Error(model) where there is none, or of another shape.
using AdapterValues = std::function<std::span<const float>(const std::string& name,
                                                           std::initializer_list<int64_t> shape)>;

// Brings rows of a weight to those of the merged one: `rows` holds rows [begin, begin + n) of it,
// f32 [n, in] on the host, contiguous, and the Ops are the CPU's. Empty: the weight stays as it is.
using WeightMerge = std::function<void(Ops& ops, int64_t begin, const Tensor& rows)>;

}  // namespace jackscrew
