// Writing weights in GPTQ's layout (formats/gptq.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "base/half.h"
#include "formats/quantised_model_writer.h"
#include "quant/weight_spec.h"

namespace jackscrew {

struct GptqLayout {
  int64_t bits = 4;               // 2, 3, 4 or 8
  int64_t group_size = 128;       // columns that share a scale; -1: the whole row
  bool activation_order = false;  // columns were rounded by falling activation: "desc_act"
  bool symmetric = true;          // the zero is the middle of the codes: "sym"

  // The number of groups in a row of `cols` columns; the last may be shorter.
  int64_t groups(int64_t cols) const;
};

// A quantised weight: the value of column k of a row is scale * (code - zero), with scale and zero
// of group group_of[k], rounded to f16.
struct GptqMatrix {
  int64_t rows = 0, cols = 0, groups = 0;
  std::vector<uint8_t> codes;     // [rows, cols]
  std::vector<uint8_t> zeros;     // [rows, groups], at least 1: files hold one less
  std::vector<f16> scales;        // [rows, groups]
  std::vector<int32_t> group_of;  // [cols]
};

// Throws Error(model) where the codes of a row or a column do not fill whole 32-bit words.
void check_gptq_shape(const WeightSpec& weight, const GptqLayout& layout);

// The file's tensors for a weight, without and with their bytes: .qweight .qzeros .scales .g_idx.
std::vector<SafetensorsSpec> gptq_specs(const WeightSpec& weight, const GptqLayout& layout);
std::vector<TensorBytes> gptq_tensors(const WeightSpec& weight, const GptqLayout& layout,
                                      const GptqMatrix& matrix);

// The quantization_config of a model whose linear layers in blocks are such weights. `damping` is
// the share of the mean of the Hessian's diagonal that was added to the diagonal.
nlohmann::json gptq_quantization_config(const GptqLayout& layout, double damping);

}  // namespace jackscrew
