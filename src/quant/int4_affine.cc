#include "quant/int4_affine.h"

#include "quant/group_format.h"
#include "quant/int4_affine.rows.h"

namespace jackscrew {

namespace {

class Int4AffineFormat : public GroupFormat<Int4AffineCodec> {
 public:
  Int4AffineFormat() : GroupFormat("int4_affine") {}

 private:
  GroupedMatrix<Int4AffineCodec> place(void* base, int64_t rows, int64_t cols) const override {
    const GroupLayout layout{cols, 256, 0};
    const int64_t groups = group_count(layout, rows);
    PartLayout parts(base);
    Int4AffineCodec codec{};
    codec.codes = parts.add<uint8_t>(ceil_div(checked_mul(rows, cols), 2));
    codec.scales = parts.add<float>(groups);
    codec.zeros = parts.add<uint8_t>(groups);
    return {codec, layout, parts.bytes()};
  }
};

}  // namespace

const Format& int4_affine_format() {
  static const Int4AffineFormat kFormat;
  return kFormat;
}

}  // namespace jackscrew
