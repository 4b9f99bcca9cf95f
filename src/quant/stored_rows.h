// Reads a StoredTensor, from its file or as it is computed, as rows of a weight.
#pragma once

#include "quant/stored_tensor.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// Throws Error(model) naming the weight when the stored tensor has another shape, or a number of
// bytes that does not match its format.
void check_stored(const WeightSpec& weight, const StoredTensor& stored);

// Whether a checked tensor lies in its file exactly as in storage of its format, so that products
// may read it there: rows one after another, in the model's order, aligned to their elements.
bool lies_as_storage(const StoredTensor& stored, int64_t cols);

// Copies a whole tensor, unconverted, into storage of its own format.
void copy_storage(Ops& ops, const StoredTensor& stored, const Storage& storage);

// Decodes rows of a checked tensor. It needs bytes_for() bytes of memory on the device of its Ops:
// one panel of the file where rows lie one after another, else the whole tensor. The memory and the
// tensor must outlive it.
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
