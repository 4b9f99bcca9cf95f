// A Format made from a Codec (see group_row.h): what formats share that code elements in groups and
// store each kind of data (codes, scales) in a part of its own.
#pragma once

#include "quant/format.h"
#include "quant/group_row.h"
#include "quant/part_layout.h"

namespace jackscrew {

template <class Codec>
struct GroupedMatrix {
  Codec codec;
  GroupLayout layout;
  int64_t bytes;  // of all parts
};

// The number of groups in a whole matrix.
inline int64_t group_count(const GroupLayout& layout, int64_t rows) {
  return layout.row_groups > 0 ? checked_mul(rows, layout.row_groups)
                               : ceil_div(checked_mul(rows, layout.cols), layout.group);
}

// Encodes every group with codec.encode().
template <class Codec>
void encode_groups(Ops& ops, const RowSource& source, const Storage& storage,
                   const GroupedMatrix<Codec>& matrix, const Rounding& rounding) {
  for_encode_panels(source, storage, [&](const Tensor& panel, int64_t first_row) {
    ops.launch(EncodeGroups<Codec>{matrix.codec, matrix.layout, panel.data<float>(), first_row,
                                   panel.size(), rounding},
               group_count(matrix.layout, panel.rows()));
  });
}

// A format that is only read from files.
template <class Codec>
class ReadGroupFormat : public Format {
 public:
  explicit ReadGroupFormat(const char* name) : name_(name) {}
  const char* name() const override { return name_; }

  int64_t storage_bytes(int64_t rows, int64_t cols) const override {
    if (rows <= 0 || cols <= 0) {
      fail(ErrorKind::model, "a matrix [{}, {}] cannot be stored as {}", rows, cols, name_);
    }
    return place(nullptr, rows, cols).bytes;
  }

  void multiply(Ops& ops, const Storage& storage, const Tensor& x, const Tensor& y,
                Accumulate accumulate, Arena&) const override {
    const auto matrix = matrix_of(storage);
    ops.launch(DotGroups<Codec>{matrix.codec, matrix.layout, x.data<float>(), y.data<float>(),
                                accumulate == Accumulate::yes},
               y.cols());
  }

  bool for_linears_only() const override { return true; }

 protected:
  // The parts of a matrix over its bytes.
  virtual GroupedMatrix<Codec> place(void* base, int64_t rows, int64_t cols) const = 0;
  GroupedMatrix<Codec> matrix_of(const Storage& storage) const {
    return place(storage.bytes.raw(), storage.rows, storage.cols);
  }
  void decode_rows(Ops& ops, const Storage& storage, const Rows& rows,
                   const Tensor& out) const override {
    const auto matrix = matrix_of(storage);
    ops.launch(DecodeGroups<Codec>{matrix.codec, matrix.layout, rows.indices, out.raw(), rows.first,
                                   out.row_stride(), out.dtype() == DType::bf16},
               rows.count);
  }

 private:
  const char* name_;
};

// A format that can also be encoded.
template <class Codec>
class GroupFormat : public ReadGroupFormat<Codec> {
 public:
  using ReadGroupFormat<Codec>::ReadGroupFormat;

  bool can_encode() const override { return true; }
  void encode(Ops& ops, const RowSource& source, const Storage& storage, const Rounding& rounding,
              Arena&) const override {
    encode_groups(ops, source, storage, this->matrix_of(storage), rounding);
  }
};

}  // namespace jackscrew
