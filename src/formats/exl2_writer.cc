#include "formats/exl2_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "formats/exl2.h"

namespace jackscrew {

namespace {

constexpr int64_t kColumnGrain = 32;     // codes of so many columns fill whole words for any bits
constexpr int64_t kMostColumns = 65535;  // programs keep the order of columns in 16 bits
constexpr int64_t kScaleBits = 4;
// Rows that are packed together, so that each line of words is written in whole cache lines.
constexpr int64_t kWrittenRows = 64;

int64_t lines_of(const Exl2Groups& groups) {
  return std::accumulate(
      groups.begin(), groups.end(), int64_t{0},
      [](int64_t lines, const Exl2Group& g) { return lines + g.columns * g.bits / kWordBits; });
}

std::vector<uint32_t> words_of_codes(const Exl2Matrix& matrix, const SafetensorsSpec& spec) {
  std::vector<uint32_t> words = words_of(spec);
  const int64_t stride = spec.shape[1];
  for (int64_t begin = 0; begin < stride; begin += kWrittenRows) {
    int64_t first_line = 0, first = 0;
    for (const auto& [columns, bits] : matrix.groups) {
      for (int64_t row = begin; row < std::min(stride, begin + kWrittenRows); ++row) {
        for (int64_t k = 0; k < columns; ++k) {
          const uint32_t code =
              row < matrix.rows ? matrix.codes[static_cast<size_t>(row * matrix.cols + first + k)]
                                : 1u << (bits - 1);
          put_bits(words, first_line * stride + row, stride, k, bits, code);
        }
      }
      first_line += columns * bits / kWordBits;
      first += columns;
    }
  }
  return words;
}

}  // namespace

void check_exl2_shape(const WeightSpec& weight) {
  if (weight.cols % kColumnGrain == 0 && weight.cols <= kMostColumns) return;
  throw Error(ErrorKind::model, fmt::format("{} has {} columns: EXL2 has multiples of {}, up to {}",
                                            weight.name, weight.cols, kColumnGrain, kMostColumns));
}

std::vector<SafetensorsSpec> exl2_specs(const WeightSpec& weight, const Exl2Groups& groups) {
  check_exl2_shape(weight);
  const std::string layer = weight.path();
  const auto count = static_cast<int64_t>(groups.size());
  const int64_t rows = round_up(weight.rows, kExl2PaddedRows);
  return {{layer + ".q_weight", "I32", {lines_of(groups), rows}},
          {layer + ".q_groups", "I16", {2 * count}},
          {layer + ".q_invperm", "I32", {weight.cols}},
          {layer + ".q_scale", "I32", {count, rows * kScaleBits / kWordBits}},
          {layer + ".q_scale_max", "F16", {count}}};
}

std::vector<TensorBytes> exl2_tensors(const WeightSpec& weight, const Exl2Matrix& matrix) {
  const std::vector<SafetensorsSpec> specs = exl2_specs(weight, matrix.groups);
  const int64_t rows = specs[0].shape[1];
  const auto groups = static_cast<int64_t>(matrix.groups.size());
  std::vector<uint16_t> table;
  int64_t line = 0;
  for (const auto& [columns, bits] : matrix.groups) {
    table.push_back(narrow<uint16_t>(bits));
    table.push_back(narrow<uint16_t>(line));
    line += columns * bits / kWordBits;
  }
  std::vector<int32_t> places(matrix.column_order.size());
  for (size_t k = 0; k < places.size(); ++k) {
    places[static_cast<size_t>(matrix.column_order[k])] = narrow<int32_t>(static_cast<int64_t>(k));
  }
  std::vector<uint32_t> scales = words_of(specs[3]);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t row = 0; row < rows; ++row) {
      const uint32_t code = row < matrix.rows
                                ? matrix.scale_codes[static_cast<size_t>(g * matrix.rows + row)]
                                : 15u;  // as exllamav2 pads; the padded codes have the value 0
      put_bits(scales, g * specs[3].shape[1], 1, row, kScaleBits, code);
    }
  }
  std::vector<TensorBytes> out;  // from a list their bytes would be copied
  out.push_back(with_bytes(specs[0], words_of_codes(matrix, specs[0])));
  out.push_back(with_bytes(specs[1], table));
  out.push_back(with_bytes(specs[2], places));
  out.push_back(with_bytes(specs[3], scales));
  out.push_back(with_bytes(specs[4], matrix.scale_max));
  return out;
}

nlohmann::json exl2_quantization_config(const Exl2Config& config) {
  return {{"quant_method", "exl2"},
          {"bits", config.bits},
          {"head_bits", config.head_bits},
          {"calibration",
           {{"rows", config.sequences}, {"length", config.sequence_len}, {"dataset", "(given)"}}}};
}

}  // namespace jackscrew
