// Rounds a matrix into a storage format of GGUF as GPTQ does (Frantar et al. 2023): element by
// element of a row; those behind each one compensate, as far as possible, for what its rounding
// does to the outputs.
#pragma once

#include <vector>

#include "conversion/hessian.h"
#include "quant/row_encoders.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// Rounds w, f32 [rows, cols], contiguous, and replaces it by the values of the codes. Returns the
// rows one after another, encoder.format->row_bytes(cols) each. `u` is InverseFactor's in the order
// of columns; if it is empty, each number is rounded by itself, as RowEncoder::encode does. Else
// scales are chosen by RowEncoder::round_block, where the squared error of a column is weighted by
// its cost, 1 / U_kk². Throws Error(model) for a weight that the format's f16 scales cannot reach,
// Error(non_finite) for one that is not finite. The result does not depend on threads.
std::vector<uint8_t> round_storage(Ops& ops, Memory& memory, const WeightSpec& weight,
                                   const Tensor& w, const Tensor& u, const RowEncoder& encoder);

}  // namespace jackscrew
