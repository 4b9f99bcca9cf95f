// Storage formats: how the values of a weight are stored. A format defines the layout of a whole
// matrix and knows nothing of models, products or learners. Adding one takes a few short files here
// (see q8_0.* for a block format of files, int8.* for a group format that we encode). A format with
// one layout for every tensor is a line in the table of format.cc. A format whose layout a file
// describes tensor by tensor is instantiated by the reader of that file and has no name in recipes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/ops.h"
#include "quant/rounding.h"
#include "tensor/tensor.h"

namespace jackscrew {

// The bytes of a matrix in some format; a view.
struct Storage {
  // u8 [format.storage_bytes(rows, cols)]. Aligned to 64 bytes, unless rows lie one after another
  // (Format::row_bytes() > 0): then plain formats need the alignment of an element, and block
  // formats none.
  Tensor bytes;
  int64_t rows, cols;
};

// Rows of 4-bit codes after a Hadamard transform (int4_hadamard.h); a view.
struct Int4Rows {
  Tensor codes;       // u8 [rows, cols / 2]
  Tensor scales;      // f32 [rows, 1]
  int64_t block = 0;  // of the transform; 0: there are none
};

// Returns rows [begin, end) of a matrix: f32 [end - begin, cols], contiguous, valid until the next
// call. encode() asks for every row once, in order, in panels of encode_panel_rows(), the last of
// which may be shorter; on the plan device it asks for the first panel only.
using RowSource = std::function<Tensor(int64_t begin, int64_t end)>;

class Format {
 public:
  virtual ~Format() = default;

  // "f32", "q4_k" ...; for formats of the table, their name in recipes.
  virtual const char* name() const = 0;

  // Bytes of a row in formats whose rows lie one after another (plain, GGUF); 0 in the others.
  // Throws Error(model) when the format cannot hold such rows.
  virtual int64_t row_bytes(int64_t /*cols*/) const { return 0; }
  // Bytes of a whole matrix; rows * row_bytes(cols) unless overridden. Throws Error(model) when the
  // format cannot hold such a matrix.
  virtual int64_t storage_bytes(int64_t rows, int64_t cols) const;

  // Writes rows [begin, end) to out [end - begin, cols], f32 or bf16 (rounded to nearest).
  void decode(Ops& ops, const Storage& storage, int64_t begin, int64_t end,
              const Tensor& out) const;
  // Writes rows indices[i] (i32 [n]) to out [n, cols], f32 or bf16.
  void gather(Ops& ops, const Storage& storage, const Tensor& indices, const Tensor& out) const;

  // y [1, rows] (+)= x [1, cols] times the transposed matrix, in f32: the product of a single
  // token. Decoding rows into memory and reading them back would take several times as long.
  virtual void multiply(Ops& ops, const Storage& storage, const Tensor& x, const Tensor& y,
                        Accumulate accumulate, Arena& scratch) const = 0;

  // Whether encode() is offered: only then can a weight be converted to this format, or trained.
  virtual bool can_encode() const { return false; }
  // Encodes all rows into the storage. Values that are not finite stay so, and may make the rest of
  // their group non-finite as well. Throws Error(usage) unless can_encode().
  virtual void encode(Ops& ops, const RowSource& source, const Storage& storage,
                      const Rounding& rounding, Arena& scratch) const;

  // Whether to keep embeddings and the head out of this format when a whole model is converted:
  // they are far more sensitive to coarse rounding than the linears of the blocks.
  virtual bool for_linears_only() const { return false; }

  // A view of the storage if it is signed bytes with one scale per row; else empty tensors.
  virtual Int8Rows int8_rows(const Storage&) const { return {}; }
  // A view of the storage if it is such rows; else nothing.
  virtual Int4Rows int4_rows(const Storage&) const { return {}; }

 protected:
  struct Rows {
    const int32_t* indices;  // a list; null: first, first + 1, ...
    int64_t first;           // 0 with a list
    int64_t count;
  };
  // Writes the rows to out [count, cols], f32 or bf16.
  virtual void decode_rows(Ops& ops, const Storage& storage, const Rows& rows,
                           const Tensor& out) const = 0;

 private:
  void check_output(const Tensor& out) const;
};

// The size of panels that pass rows into storage or to the host. Such a panel is written and read
// once, so it should fit the last-level cache. Products use Ops::panel_bytes() instead.
inline constexpr int64_t kPanelBytes = int64_t{4} << 20;
// The number of rows in a panel of about panel_bytes (at least 32 rows), which bounds the size of a
// temporary whatever the matrix.
int64_t panel_rows(int64_t cols, int64_t element_bytes, int64_t panel_bytes = kPanelBytes);

// The number of rows in an f32 panel for encode(). The elements of a panel are a multiple of 256,
// so that groups of the row-major flattening (of any power of two up to 256) end where a panel
// ends.
int64_t encode_panel_rows(int64_t cols);
// Calls body(panel, first_row) for every panel of a matrix, as encode() does; on the plan device,
// where storage has no bytes, only for the first. No panel is larger, so the planned arenas are the
// same, and the matrices of a large model have millions of panels.
template <class Body>
void for_encode_panels(const RowSource& source, const Storage& storage, const Body& body) {
  const int64_t step = encode_panel_rows(storage.cols);
  const bool is_planned = storage.bytes.raw() == nullptr;
  const int64_t rows = is_planned ? std::min(storage.rows, step) : storage.rows;
  for (int64_t begin = 0; begin < rows; begin += step) {
    body(source(begin, std::min(rows, begin + step)), begin);
  }
}

// Shared by the tensors and weights that are stored in the format.
using FormatPointer = std::shared_ptr<const Format>;
// A non-owning pointer to a format of the table, which outlives all weights.
FormatPointer unowned(const Format& format);

// The format of that name; null where none has it.
const Format* format_named(std::string_view name);
// The same. Throws Error(model) for an unknown one.
const Format& find_format(std::string_view name);
std::span<const Format* const> all_formats();

}  // namespace jackscrew
