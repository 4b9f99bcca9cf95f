// What lies in a file, or is computed in its place, as a weight's rows.
#pragma once

#include "quant/stored_tensor.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// Throws Error(model) naming the weight when what is stored has another shape, or bytes that are
// not those of its format.
void check_stored(const WeightSpec& weight, const StoredTensor& stored);

// Whether a checked tensor lies in its file just as storage of its format does, so that products
// may read it there: rows one after another, in the model's order, at an address fit for their
// elements.
bool lies_as_storage(const StoredTensor& stored, int64_t cols);

// Copies the whole of a tensor, as it is, into storage of its own format.
void copy_storage(Ops& ops, const StoredTensor& stored, const Storage& storage);

// The values of a checked tensor. It needs bytes_for() of memory on the device of its Ops, which,
// like the tensor, outlives it: a panel of the file where rows lie one after another, else all of
// the tensor.
class StoredRows {
 public:
  static int64_t bytes_for(const StoredTensor& stored, int64_t rows, int64_t cols);

  // `bytes`: u8 [bytes_for()].
  StoredRows(Ops& ops, const StoredTensor& stored, int64_t rows, int64_t cols, const Tensor& bytes);

  // Rows [begin, end) to out, f32 [end - begin, cols].
  void decode(int64_t begin, int64_t end, const Tensor& out) const;

 private:
  Ops& ops_;
  const StoredTensor& stored_;
  int64_t rows_, cols_;
  int64_t row_bytes_;  // 0: the rows do not lie one after another, and all of them are in bytes_
  int64_t step_;       // rows that bytes_ holds
  Tensor bytes_;
};

}  // namespace jackscrew
