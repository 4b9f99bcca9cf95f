// Scales in a file: one for each group of each row, in a type to which values are rounded.
#pragma once

#include <functional>

#include "formats/quantised_layout.h"
#include "quant/packed.h"

namespace jackscrew {

struct ScaleTable {
  const SafetensorsEntry* entry;
  PackedScale type;
  // Elements from one row, and from one group, to the next; 0: all share them.
  int64_t row_stride, group_stride;

  size_t element_bytes() const { return type == PackedScale::f32 ? sizeof(float) : sizeof(f16); }
  // For PackedSource::scales.
  std::function<void(int64_t row, uint8_t* to)> of_row(int64_t groups) const;
};

// Of a tensor of F16, BF16 or F32. Throws Error(model) for another type or another shape.
ScaleTable read_scales(const LayerTensors& tensors, std::string_view suffix,
                       const std::vector<int64_t>& shape, int64_t row_stride, int64_t group_stride);

}  // namespace jackscrew
