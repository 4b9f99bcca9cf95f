#include "formats/fp8_weights.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "formats/json_text.h"
#include "formats/scale_table.h"
#include "formats/shape.h"
#include "quant/fp8.h"
#include "quant/packed_source.h"

namespace jackscrew {

namespace {

constexpr std::string_view kFp8Weight = ".weight";
constexpr std::string_view kFp8Inverse = ".weight_scale_inv";
constexpr std::string_view kFp8Dtype = "F8_E4M3";
constexpr std::array kFp8Parts = {kFp8Weight, kFp8Inverse};

// The block that shares a scale, from the shape of the scales and what the configuration says.
Fp8Layout blocks_of(const SafetensorsEntry& scale, int64_t rows, int64_t cols,
                    const std::vector<int64_t>& block, int64_t group_size) {
  const std::vector<int64_t>& shape = scale.shape;
  const bool is_single = std::all_of(shape.begin(), shape.end(), [](auto n) { return n == 1; });
  if (is_single && shape.size() <= 2) return {.block_rows = rows, .block_cols = cols};
  const bool is_by_row = !shape.empty() && shape[0] == rows;
  if (is_by_row && shape.size() == 1) return {.block_cols = cols};
  if (is_by_row && shape.size() == 2 && shape[1] > 1 && group_size > 0) {
    if (ceil_div(cols, group_size) != shape[1]) {
      fail(ErrorKind::model, "tensor {}: {} columns do not divide into {} groups of {}", scale.name,
           cols, shape[1], group_size);
    }
    return {.block_cols = group_size};
  }
  if (block.size() == 2 && block[0] > 0 && block[1] > 0 &&
      shape == std::vector{ceil_div(rows, block[0]), ceil_div(cols, block[1])}) {
    return {.block_rows = block[0], .block_cols = block[1]};
  }
  if (is_by_row && shape.size() == 2 && shape[1] >= 1 && cols % shape[1] == 0) {
    return {.block_cols = cols / shape[1]};
  }
  throw Error(ErrorKind::model,
              fmt::format("tensor {} of shape {} does not fit a weight [{}, {}] in blocks of {}",
                          scale.name, shape_text(shape), rows, cols,
                          block.empty() ? "unknown size" : shape_text(block)),
              "read are scales of the whole weight, of rows, of groups within rows, and of the "
              "blocks that quantization_config gives");
}

StoredTensor read_inverse(const LayerTensors& tensors, const QuantizationConfig& config) {
  const JsonFields fields(*config.fields, config.where);
  return read_fp8(tensors, kFp8Inverse, fields.integers("weight_block_size"), 0);
}

}  // namespace

bool is_fp8(const LayerTensors& tensors) {
  const SafetensorsEntry* weight = tensors.find(kFp8Weight);
  return weight != nullptr && weight->dtype == kFp8Dtype;
}

StoredTensor read_fp8(const LayerTensors& tensors, std::string_view scales,
                      const std::vector<int64_t>& block, int64_t group_size) {
  const SafetensorsEntry& codes = tensors.matrix(kFp8Weight, kFp8Dtype);
  const SafetensorsEntry& entry = tensors.get(scales);
  Fp8Layout layout = blocks_of(entry, codes.shape[0], codes.shape[1], block, group_size);
  const ScaleTable table = read_scales(tensors, scales, entry.shape, 0, 0);
  layout.scale = table.type;
  const size_t count = entry.bytes.size() / table.element_bytes();
  for (size_t i = 0; i < count; ++i) {
    if (const float scale = scale_at(table.type, table.entry->bytes.data(), i);
        !(std::abs(scale) * kLargestE4m3 < value_limit(table.type))) {
      fail(ErrorKind::model, "tensor {}: scale {} is {}: its values are not finite", entry.name, i,
           scale);
    }
  }
  StoredTensor out;
  out.format = make_fp8_format(layout);
  out.shape = codes.shape;
  out.settings =
      block_settings(codes.shape[0], codes.shape[1], layout.block_rows, layout.block_cols);
  tensors.set_bytes(out, kFp8Weight, {scales});
  return out;
}

QuantisedLayout fp8_layout() {
  return {.method = "fp8",
          .help = "fp8 of Hugging Face",
          .marker = kFp8Inverse,
          .parts = kFp8Parts,
          .needs_no_config = false,
          .read = read_inverse};
}

}  // namespace jackscrew
