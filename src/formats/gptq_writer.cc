#include "formats/gptq_writer.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace jackscrew {

int64_t GptqLayout::groups(int64_t cols) const {
  return group_size == -1 ? 1 : ceil_div(cols, group_size);
}

void check_gptq_shape(const WeightSpec& weight, const GptqLayout& layout) {
  for (const auto& [what, count] : {std::pair{"rows", weight.rows}, {"columns", weight.cols}}) {
    if (count * layout.bits % kWordBits == 0) continue;
    throw Error(ErrorKind::model,
                fmt::format("{} has {} {}: {} of {} bits fill no whole words of GPTQ", weight.name,
                            count, what, what, layout.bits));
  }
}

std::vector<SafetensorsSpec> gptq_specs(const WeightSpec& weight, const GptqLayout& layout) {
  check_gptq_shape(weight, layout);
  const std::string layer = weight.path();
  const int64_t groups = layout.groups(weight.cols);
  return {{layer + ".qweight", "I32", {weight.cols * layout.bits / kWordBits, weight.rows}},
          {layer + ".qzeros", "I32", {groups, weight.rows * layout.bits / kWordBits}},
          {layer + ".scales", "F16", {groups, weight.rows}},
          {layer + ".g_idx", "I32", {weight.cols}}};
}

std::vector<TensorBytes> gptq_tensors(const WeightSpec& weight, const GptqLayout& layout,
                                      const GptqMatrix& matrix) {
  const int64_t rows = matrix.rows, cols = matrix.cols, groups = matrix.groups;
  const std::vector<SafetensorsSpec> specs = gptq_specs(weight, layout);
  std::vector<uint32_t> codes = words_of(specs[0]), zeros = words_of(specs[1]);
  std::vector<f16> scales(static_cast<size_t>(groups * rows));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < cols; ++k) {
      put_bits(codes, row, rows, k, layout.bits, matrix.codes[static_cast<size_t>(row * cols + k)]);
    }
    for (int64_t g = 0; g < groups; ++g) {
      const auto from = static_cast<size_t>(row * groups + g);
      put_bits(zeros, g * specs[1].shape[1], 1, row, layout.bits, matrix.zeros[from] - 1u);
      scales[static_cast<size_t>(g * rows + row)] = matrix.scales[from];
    }
  }
  std::vector<TensorBytes> out;  // from a list their bytes would be copied
  out.push_back(with_bytes(specs[0], codes));
  out.push_back(with_bytes(specs[1], zeros));
  out.push_back(with_bytes(specs[2], scales));
  out.push_back(with_bytes(specs[3], matrix.group_of));
  return out;
}

nlohmann::json gptq_quantization_config(const GptqLayout& layout, double damping) {
  return {{"quant_method", "gptq"},
          {"bits", layout.bits},
          {"group_size", layout.group_size},
          {"desc_act", layout.activation_order},
          {"sym", layout.symmetric},
          {"damp_percent", damping},
          {"static_groups", false},
          {"true_sequential", false},
          {"lm_head", false},
          {"checkpoint_format", "gptq"}};
}

}  // namespace jackscrew
