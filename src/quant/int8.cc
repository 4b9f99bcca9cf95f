#include "quant/int8.h"

#include "quant/group_format.h"
#include "quant/int8.rows.h"

namespace jackscrew {

namespace {

class Int8Format : public GroupFormat<Int8Codec> {
 public:
  Int8Format(const char* name, int64_t block) : GroupFormat(name), block_(block) {}

  Int8Rows int8_rows(const Storage& storage) const override {
    const auto matrix = matrix_of(storage);
    if (matrix.layout.row_groups != 1) return {};
    return {Tensor(matrix.codec.codes, DType::i8, {storage.rows, storage.cols}),
            Tensor(matrix.codec.scales, DType::f32, {storage.rows})};
  }

 private:
  GroupedMatrix<Int8Codec> place(void* base, int64_t rows, int64_t cols) const override {
    const int64_t group = block_ > 0 ? block_ : cols;
    const GroupLayout layout{cols, group, ceil_div(cols, group)};
    PartLayout parts(base);
    Int8Codec codec{};
    codec.codes = parts.add<int8_t>(checked_mul(rows, cols));
    codec.scales = parts.add<float>(group_count(layout, rows));
    return {codec, layout, parts.bytes()};
  }

  int64_t block_;
};

}  // namespace

std::unique_ptr<Format> make_int8_format(const char* name, int64_t block) {
  return std::make_unique<Int8Format>(name, block);
}

const Format& int8_format() {
  static const std::unique_ptr<Format> kFormat = make_int8_format("int8", 128);
  return *kFormat;
}

const Format& int8_row_format() {
  static const std::unique_ptr<Format> kFormat = make_int8_format("int8_row", 0);
  return *kFormat;
}

}  // namespace jackscrew
