// Weights in the layout of EXL2 (formats/exl2.h), as they are written.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "base/half.h"
#include "formats/quantised_model_writer.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// Stored columns that follow one another, with codes of so many bits and a scale for each row.
struct Exl2Group {
  int64_t columns = 0, bits = 0;
};
// Those of a matrix; programs want the bits to fall.
using Exl2Groups = std::vector<Exl2Group>;

// A weight in codes. The value of stored column k of a row, which is column columns[k] of the
// matrix, is (code - 2^(bits - 1)) * f16((scale code + 1)² * f16(scale_max / 256)), rounded to f16.
struct Exl2Matrix {
  int64_t rows = 0, cols = 0;
  Exl2Groups groups;
  std::vector<int32_t> columns;      // [cols]
  std::vector<uint8_t> codes;        // [rows, cols], in the stored order
  std::vector<uint8_t> scale_codes;  // [groups, rows], 0 to 15
  std::vector<f16> scale_max;        // [groups]
};

// Throws Error(model) where the layout cannot have such a weight.
void check_exl2_shape(const WeightSpec& weight);

// The tensors of a weight, without and with their bytes. Rows are padded to a multiple of 32 by
// codes that stand for 0.
std::vector<SafetensorsSpec> exl2_specs(const WeightSpec& weight, const Exl2Groups& groups);
std::vector<TensorBytes> exl2_tensors(const WeightSpec& weight, const Exl2Matrix& matrix);

// What a model was calibrated on, and to what rates.
struct Exl2Config {
  double bits = 0;        // of an element of the blocks' matrices, all that is stored counted
  int64_t head_bits = 0;  // 16: not quantised
  int64_t sequences = 0, sequence_len = 0;
};
// The quantization_config of a model whose blocks' linears are such weights.
nlohmann::json exl2_quantization_config(const Exl2Config& config);

}  // namespace jackscrew
