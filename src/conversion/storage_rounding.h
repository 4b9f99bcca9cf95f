// Rounds a matrix into a storage format as GPTQ does (Frantar et al. 2023): column by column; the
// columns after each one compensate, as far as possible, for what its rounding does to the outputs.
#pragma once

#include <vector>

#include "conversion/hessian.h"
#include "quant/block_rounding.h"
#include "quant/weight_spec.h"

namespace jackscrew {

struct StorageRounding {
  std::vector<uint8_t> bytes;  // the storage
  // The squared errors of all columns, each divided by U_kk before squaring; 0 without U. Together
  // they are trace(D H Dᵀ) of the change D, where H is the damped matrix that U factors.
  double error = 0;
};

// Rounds w, f32 [rows, cols], contiguous, to `format`, which must have blocks (block_rounding.h),
// and replaces it by the values of the codes. `order` is that of its columns (empty: their own),
// with blocks together: ColumnOrder::blocks_by_activation. `u` is InverseFactor's in the same
// order; the squared error of a column is weighted by its cost, 1 / U_kk². If it is empty, or rows
// are no whole number of blocks, each number is rounded by itself, as export does. Throws
// Error(model) for a weight that the format's scales cannot reach, Error(non_finite) for one that
// is not finite. The result does not depend on threads.
StorageRounding round_storage(Ops& ops, Memory& memory, const WeightSpec& weight, const Tensor& w,
                              const Tensor& u, const std::vector<int32_t>& order,
                              const Format& format);
// The bytes that round_storage() books, with or without `u`.
int64_t storage_rounding_bytes(const WeightSpec& weight, const Format& format, bool compensates);
// The most bytes that round_storage() holds in vectors.
int64_t storage_held_bytes(const WeightSpec& weight, const Format& format);

}  // namespace jackscrew
