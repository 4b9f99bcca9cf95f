#include "formats/scale_table.h"

#include <cstring>

namespace jackscrew {

std::function<void(int64_t, uint8_t*)> ScaleTable::of_row(int64_t groups) const {
  return [table = *this, groups, size = element_bytes()](int64_t row, uint8_t* to) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = row * table.row_stride + g * table.group_stride;
      std::memcpy(to + static_cast<size_t>(g) * size,
                  table.entry->bytes.data() + static_cast<size_t>(at) * size, size);
    }
  };
}

ScaleTable read_scales(const LayerTensors& tensors, std::string_view suffix,
                       const std::vector<int64_t>& shape, int64_t row_stride,
                       int64_t group_stride) {
  const std::string& dtype = tensors.get(suffix).dtype;
  const PackedScale type = dtype == "BF16"  ? PackedScale::bf16
                           : dtype == "F32" ? PackedScale::f32
                                            : PackedScale::f16;
  const char* expected = type == PackedScale::f16 ? "F16" : dtype.c_str();
  return {&tensors.get(suffix, expected, shape), type, row_stride, group_stride};
}

}  // namespace jackscrew
