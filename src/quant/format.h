// Storage formats: how the numbers of a weight are kept. A format knows rows of bytes and nothing
// of models, products or learners; adding one is a few short files here (see q8_0.*) and a line in
// the table of format.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/ops.h"
#include "tensor/tensor.h"

namespace jackscrew {

// A rectangle of a matrix: rows [n0, n1), columns [k0, k1). Columns begin and end at block
// boundaries (or the end of the row).
struct TileRange {
  int64_t n0, n1, k0, k1;
};

class Format {
 public:
  virtual ~Format() = default;

  virtual const char* name() const = 0;  // as in recipes: "f32", "q4_k" ...
  // Consecutive elements of a row that are coded together; rows are a multiple of it.
  virtual int64_t block_elements() const = 0;
  virtual int64_t block_bytes() const = 0;

  // Bytes of a row of `cols` elements. Throws Error(model) when cols is not a multiple of the
  // block.
  int64_t row_bytes(int64_t cols) const;

  // Writes the values of a tile to out [n1 - n0, k1 - k0], f32 or bf16 (rounded to nearest).
  // `storage` is u8 [rows, row_bytes].
  virtual void decode_tile(Ops& ops, const Tensor& storage, const TileRange& tile,
                           const Tensor& out) const = 0;
  // Writes rows indices[i] (i32 [n]) to out [n, cols], f32 or bf16.
  virtual void decode_rows(Ops& ops, const Tensor& storage, const Tensor& indices,
                           const Tensor& out) const = 0;

  // y [1, rows] (+)= x [1, cols] times the transposed matrix, in f32: the product of a single
  // token. Decoding rows into memory and reading them back would take several times as long.
  virtual void multiply(Ops& ops, const Tensor& storage, const Tensor& x, const Tensor& y,
                        Accumulate accumulate) const = 0;

  // Whether encode_rows() is offered: only then can a weight in this format be trained.
  virtual bool can_encode() const { return false; }
  // Rounds `from` (f32 [n, cols]) to nearest into rows [first_row, first_row + n) of `storage`.
  virtual void encode_rows(Ops& ops, const Tensor& from, const Tensor& storage,
                           int64_t first_row) const;
};

// The format of that name. Throws Error(model) for an unknown one.
const Format& find_format(std::string_view name);
std::span<const Format* const> all_formats();

}  // namespace jackscrew
