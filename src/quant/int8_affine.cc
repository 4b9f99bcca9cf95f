#include "quant/int8_affine.h"

#include "quant/group_format.h"
#include "quant/int8_affine.rows.h"

namespace jackscrew {

namespace {

class Int8AffineFormat : public GroupFormat<Int8AffineCodec> {
 public:
  Int8AffineFormat() : GroupFormat("int8_affine") {}

 private:
  GroupedMatrix<Int8AffineCodec> place(void* base, int64_t rows, int64_t cols) const override {
    const GroupLayout layout{cols, 256, 0};
    const int64_t groups = group_count(layout, rows);
    PartLayout parts(base);
    Int8AffineCodec codec{};
    codec.codes = parts.add<uint8_t>(checked_mul(rows, cols));
    codec.scales = parts.add<float>(groups);
    codec.zeros = parts.add<uint8_t>(groups);
    return {codec, layout, parts.bytes()};
  }
};

}  // namespace

const Format& int8_affine_format() {
  static const Int8AffineFormat kFormat;
  return kFormat;
}

}  // namespace jackscrew
