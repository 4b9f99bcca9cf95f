// A file's scales, one for each group of each row. Decoded values are rounded to the scales' type.
#pragma once

#include <functional>

#include "formats/quantised_layout.h"
#include "quant/packed.h"

namespace jackscrew {

struct ScaleTable {
  const SafetensorsEntry* entry;
  PackedScale type;
  // Elements from one row to the next, and from one group to the next; 0: all share a scale.
  int64_t row_stride, group_stride;

  size_t element_bytes() const { return type == PackedScale::f32 ? sizeof(float) : sizeof(f16); }
  // Returns a function that writes the scales of a row, for PackedSource::scales.
  std::function<void(int64_t row, uint8_t* to)> of_row(int64_t groups) const;
};

// The scales in a tensor of F16, BF16 or F32. Throws Error(model) for another type or shape.
ScaleTable read_scales(const LayerTensors& tensors, std::string_view suffix,
                       const std::vector<int64_t>& shape, int64_t row_stride, int64_t group_stride);

}  // namespace jackscrew
