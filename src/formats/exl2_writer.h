// Writing weights in EXL2's layout (formats/exl2.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "base/half.h"
#include "formats/quantised_model_writer.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// A run of stored columns whose codes have the same bits, with one scale per row.
struct Exl2Group {
  int64_t columns = 0, bits = 0;
};
// The groups of a matrix; programs expect their bits in descending order.
using Exl2Groups = std::vector<Exl2Group>;

// A quantised weight. The value of stored column k of a row, which is column column_order[k] of the
// matrix, is (code - 2^(bits - 1)) * f16((scale code + 1)² * f16(scale_max / 256)), rounded to f16.
struct Exl2Matrix {
  int64_t rows = 0, cols = 0;
  Exl2Groups groups;
  std::vector<int32_t> column_order;  // [cols]
  std::vector<uint8_t> codes;         // [rows, cols], in the stored order
  std::vector<uint8_t> scale_codes;   // [groups, rows], 0 to 15
  std::vector<f16> scale_max;         // [groups]
};

// Throws Error(model) unless the columns are a multiple of 32, and at most 65535.
void check_exl2_shape(const WeightSpec& weight);

// The file's tensors for a weight, without and with their bytes. Rows are padded to a multiple of
// 32 with codes of value 0.
std::vector<SafetensorsSpec> exl2_specs(const WeightSpec& weight, const Exl2Groups& groups);
std::vector<TensorBytes> exl2_tensors(const WeightSpec& weight, const Exl2Matrix& matrix);

// The rates of a model and the data that it was calibrated on.
struct Exl2Config {
  double bits = 0;        // per element of the blocks' matrices, scales and tables included
  int64_t head_bits = 0;  // 16: not quantised
  int64_t sequences = 0, sequence_len = 0;
};
// The quantization_config of a model whose linear layers in blocks are such weights.
nlohmann::json exl2_quantization_config(const Exl2Config& config);

}  // namespace jackscrew
