#include "quant/int8_absmax.h"

#include "quant/group_format.h"
#include "quant/int8_absmax.rows.h"

namespace jackscrew {

namespace {

class Int8AbsmaxFormat : public ReadGroupFormat<Int8AbsmaxCodec> {
 public:
  Int8AbsmaxFormat() : ReadGroupFormat("int8_absmax") {}

 private:
  GroupedMatrix<Int8AbsmaxCodec> place(void* base, int64_t rows, int64_t cols) const override {
    PartLayout parts(base);
    Int8AbsmaxCodec codec{};
    codec.codes = parts.add<int8_t>(checked_mul(rows, cols));
    codec.absmax = parts.add<float>(rows);
    return {codec, {cols, cols, 1}, parts.bytes()};
  }
};

}  // namespace

const Format& int8_absmax_format() {
  static const Int8AbsmaxFormat kFormat;
  return kFormat;
}

}  // namespace jackscrew
