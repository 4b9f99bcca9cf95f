// A Format made from a Block (see block_row.h): all that the GGUF formats have in common.
#pragma once

#include "quant/block_row.h"
#include "quant/format.h"

namespace jackscrew {

template <class Block>
class BlockFormat : public Format {
 public:
  explicit BlockFormat(const char* name) : name_(name) {}
  const char* name() const override { return name_; }

  int64_t row_bytes(int64_t cols) const override {
    if (cols <= 0 || cols % Block::kElements != 0) {
      fail(ErrorKind::model, "rows of {} elements cannot be stored as {}, whose blocks hold {}",
           cols, name_, Block::kElements);
    }
    return checked_mul(cols / Block::kElements, Block::kBytes);
  }

  void multiply(Ops& ops, const Storage& storage, const Tensor& x, const Tensor& y,
                Accumulate accumulate, Arena&) const override {
    ops.launch(DotBlocks<Block>{x.data<float>(), storage.bytes.data<uint8_t>(), y.data<float>(),
                                row_bytes(storage.cols), div_exact(x.cols(), Block::kElements),
                                accumulate == Accumulate::yes},
               y.cols());
  }

 private:
  void decode_rows(Ops& ops, const Storage& storage, const Rows& rows,
                   const Tensor& out) const override {
    ops.launch(DecodeBlocks<Block>{storage.bytes.data<uint8_t>(), rows.indices, out.raw(),
                                   row_bytes(storage.cols), rows.first,
                                   div_exact(storage.cols, Block::kElements), out.row_stride(),
                                   out.dtype() == DType::bf16},
               rows.count);
  }

  const char* name_;
};

}  // namespace jackscrew
