// How an adapter is merged into the weights of its model.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>

#include "kernels/ops.h"

namespace jackscrew {

// The values of an adapter's tensor, f32 on the host, by the name that slots give it. They outlive
// the caller. Throws Error(model) where there is none of that name, or its shape differs.
using AdapterValues = std::function<std::span<const float>(const std::string& name,
                                                           std::initializer_list<int64_t> shape)>;

// Turns rows of a weight into those of the merged weight, in place: `rows` holds rows
// [begin, begin + n), f32 [n, in] on the host, contiguous; the Ops are the CPU's. An empty function
// leaves the weight as it is.
using WeightMerge = std::function<void(Ops& ops, int64_t begin, const Tensor& rows)>;

}  // namespace jackscrew
