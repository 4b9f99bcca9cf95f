#include "quant/int8_dynamic.h"

#include "quant/group_format.h"
#include "quant/int8_dynamic.rows.h"

namespace jackscrew {

namespace {

class Int8DynamicFormat : public GroupFormat<Int8DynamicCodec> {
 public:
  Int8DynamicFormat(const char* name, int64_t block) : GroupFormat(name), block_(block) {}

 private:
  GroupedMatrix<Int8DynamicCodec> place(void* base, int64_t rows, int64_t cols) const override {
    const GroupLayout layout{cols, block_, 0};
    PartLayout parts(base);
    Int8DynamicCodec codec{};
    codec.map = signed_dynamic_map();
    codec.codes = parts.add<uint8_t>(checked_mul(rows, cols));
    codec.absmax = parts.add<float>(group_count(layout, rows));
    return {codec, layout, parts.bytes()};
  }

  int64_t block_;
};

}  // namespace

std::unique_ptr<Format> make_int8_dynamic_format(const char* name, int64_t block) {
  return std::make_unique<Int8DynamicFormat>(name, block);
}

const Format& int8_dynamic_format() {
  static const std::unique_ptr<Format> kFormat = make_int8_dynamic_format("int8_dynamic", 128);
  return *kFormat;
}

}  // namespace jackscrew
