#include "formats/gptq.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/json_text.h"
#include "formats/scale_table.h"
#include "formats/shape.h"
#include "quant/packed_source.h"

namespace jackscrew {

namespace {

constexpr std::string_view kGptqCodes = ".qweight";
constexpr std::string_view kGptqZeros = ".qzeros";
constexpr std::string_view kGptqScales = ".scales";
constexpr std::string_view kGptqGroups = ".g_idx";
constexpr std::array kGptqParts = {kGptqCodes, kGptqZeros, kGptqScales, kGptqGroups};

constexpr int64_t kAwqBits = 4;
// The nibble of a word that holds row n of eight: the inverse of AWQ's order 0 2 4 6 1 3 5 7.
constexpr std::array<int64_t, 8> kAwqNibble = {0, 4, 1, 5, 2, 6, 3, 7};

// Reads scales of shape [groups, rows].
ScaleTable read_scales(const LayerTensors& tensors, int64_t groups, int64_t rows) {
  return read_scales(tensors, kGptqScales, {groups, rows}, 1, rows);
}

// The columns of a group; -1 in the file stands for all columns.
int64_t group_size(const JsonFields& fields, const char* key, int64_t cols) {
  const int64_t size = fields.integer(key);
  if (size == -1) return cols;
  if (size < 1) fail(ErrorKind::model, "{}: {} is {}", fields.where(), key, size);
  return std::min(size, cols);
}

PackedZero zero_type(int64_t bits) {
  return bits == 8 ? PackedZero::eight_bits : PackedZero::four_bits;
}

// What a configuration says under a name and its newer one, `format`. Programs differ in which of
// them they take, so both must say the same.
std::string format_text(const JsonFields& fields, const char* older, const char* usual) {
  const std::string newer = lower_case(fields.text("format", fields.text(older, usual)));
  const std::string given = lower_case(fields.text(older, newer));
  if (given == newer) return given;
  throw Error(ErrorKind::model,
              fmt::format("{}: format is {}, but {} is {}", fields.where(), newer, older, given),
              "remove the one that does not hold for the weights");
}

// Whether GPTQModel's `dynamic` quantises single layers otherwise than the rest. Those behind "-:"
// it leaves plain, which their tensors say, too.
bool sets_single_layers(const nlohmann::json& dynamic) {
  if (!dynamic.is_object()) return !dynamic.empty();
  const auto items = dynamic.items();
  return std::any_of(items.begin(), items.end(),
                     [](const auto& layers) { return !layers.key().starts_with("-:"); });
}

struct GptqSettings {
  int64_t bits;
  bool zeros_less_one;
};

GptqSettings gptq_settings(const JsonFields& fields) {
  GptqSettings settings{};
  settings.bits = fields.integer("bits");
  const int64_t bits = settings.bits;
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8) {
    throw Error(ErrorKind::model, fmt::format("{}: GPTQ in {} bits", fields.where(), bits),
                "read are 2, 3, 4 and 8");
  }
  // transformers 5 and GPTQModel call it `format`.
  const std::string format = format_text(fields, "checkpoint_format", "gptq");
  if (format != "gptq" && format != "gptq_v2") {
    throw Error(ErrorKind::model, fmt::format("{}: checkpoint_format {}", fields.where(), format),
                "read are gptq and gptq_v2");
  }
  settings.zeros_less_one = format == "gptq";
  const nlohmann::json* dynamic = fields.find("dynamic");
  if (dynamic != nullptr && sets_single_layers(*dynamic)) {
    fail(ErrorKind::model, "{}: settings of single layers (dynamic) are not read", fields.where());
  }
  return settings;
}

std::vector<int32_t> group_of_columns(const LayerTensors& tensors, const JsonFields& fields,
                                      int64_t cols, int64_t size) {
  if (tensors.find(kGptqGroups) != nullptr) {
    return elements_of<int32_t>(tensors.get(kGptqGroups, "I32", {cols}));
  }
  if (size < cols && fields.boolean("desc_act", false)) {
    fail(ErrorKind::model, "{}: desc_act is true, but tensor {} is missing", fields.where(),
         tensors.name(kGptqGroups));
  }
  std::vector<int32_t> out;
  for (int64_t k = 0; k < cols; ++k) out.push_back(static_cast<int32_t>(k / size));
  return out;
}

// How many columns the codes are of, whose bits run along them.
int64_t gptq_columns(const SafetensorsEntry& codes, int64_t bits) {
  const int64_t lines = codes.shape[0];
  if (lines * kWordBits % bits != 0) {
    fail(ErrorKind::model, "tensor {} has {} lines of words, which hold no whole number of {} bits",
         codes.name, lines, bits);
  }
  return lines * kWordBits / bits;
}

StoredTensor read_gptq(const LayerTensors& tensors, const QuantizationConfig& config) {
  const JsonFields fields(*config.fields, config.where);
  const GptqSettings settings = gptq_settings(fields);
  const int64_t bits = settings.bits;
  const SafetensorsEntry& codes = tensors.matrix(kGptqCodes, "I32");
  const int64_t rows = codes.shape[1];
  const int64_t cols = gptq_columns(codes, bits);
  const int64_t size = group_size(fields, "group_size", cols);
  const int64_t groups = ceil_div(cols, size);
  const ScaleTable scales = read_scales(tensors, groups, rows);
  const int64_t zero_words = ceil_div(rows * bits, kWordBits);
  const SafetensorsEntry& zeros = tensors.get(kGptqZeros, "I32", {groups, zero_words});
  const std::vector<int32_t> group_of = group_of_columns(tensors, fields, cols, size);
  GroupOrder order = order_by_group(group_of, groups, tensors.name(kGptqGroups));
  PackedSource source{.name = tensors.name(".weight"),
                      .format = fmt::format("gptq_{}bit", bits),
                      .rows = rows,
                      .layout = packed_layout(order.sizes, bits, scales.type, zero_type(bits),
                                              !order.columns.empty()),
                      .columns = std::move(order.columns)};
  const uint8_t* words = codes.bytes.data();
  source.codes = [=, columns = source.columns](int64_t begin, int64_t end, int64_t first,
                                               int64_t count, uint8_t* to) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t stored = first + i;
      const int64_t k = columns.empty() ? stored : columns[static_cast<size_t>(stored)];
      for (int64_t row = begin; row < end; ++row) {
        to[(row - begin) * kPackedChunk + i] =
            static_cast<uint8_t>(bits_at(words + row * 4, rows, k, bits));
      }
    }
  };
  source.scales = scales.of_row(groups);
  source.zeros = [=, packed = zeros.bytes.data()](int64_t row, uint8_t* to) {
    // AutoGPTQ wraps a zero of 2^bits round to 0, except with 3 bits, where it keeps 8.
    const uint32_t mask = bits == 3 ? 15u : (1u << bits) - 1u;
    for (int64_t g = 0; g < groups; ++g) {
      const uint32_t zero = bits_at(packed + g * zero_words * 4, 1, row, bits);
      to[g] = static_cast<uint8_t>((zero + (settings.zeros_less_one ? 1u : 0u)) & mask);
    }
  };
  StoredTensor out = packed_tensor(std::move(source));
  tensors.set_bytes(out, kGptqCodes, {kGptqZeros, kGptqScales, kGptqGroups});
  if (tensors.find(kGptqGroups) == nullptr) out.settings = block_settings(rows, cols, 1, size);
  if (!settings.zeros_less_one) out.settings = "gptq_v2 " + out.settings;
  return out;
}

void check_awq_settings(const JsonFields& fields) {
  const int64_t bits = fields.integer("bits", kAwqBits);
  // transformers 5 calls it `format`.
  const std::string version = format_text(fields, "version", "gemm");
  if (bits == kAwqBits && version == "gemm") return;
  throw Error(ErrorKind::model,
              fmt::format("{}: AWQ in {} bits, version {}", fields.where(), bits, version),
              "read is version gemm in 4 bits");
}

StoredTensor read_awq(const LayerTensors& tensors, const QuantizationConfig& config) {
  const JsonFields fields(*config.fields, config.where);
  check_awq_settings(fields);
  const SafetensorsEntry& codes = tensors.matrix(kGptqCodes, "I32");
  const int64_t cols = codes.shape[0];
  const int64_t words_of_line = codes.shape[1];
  const int64_t rows = words_of_line * 8;
  const int64_t size = group_size(fields, "group_size", cols);
  const int64_t groups = ceil_div(cols, size);
  const ScaleTable scales = read_scales(tensors, groups, rows);
  const SafetensorsEntry& zeros = tensors.get(kGptqZeros, "I32", {groups, words_of_line});
  PackedSource source{.name = tensors.name(".weight"),
                      .format = "awq_4bit",
                      .rows = rows,
                      .layout = packed_layout(equal_groups(cols, size), kAwqBits, scales.type,
                                              PackedZero::four_bits, false)};
  const auto nibble = [words_of_line](const uint8_t* words, int64_t line, int64_t row) {
    const int64_t at = (line * words_of_line + row / 8) * 8 +
                       kAwqNibble[static_cast<size_t>(row % 8)];  // nibbles, the low one first
    return static_cast<uint8_t>(words[at / 2] >> (at % 2 * 4) & 15);
  };
  source.codes = [=, words = codes.bytes.data()](int64_t begin, int64_t end, int64_t first,
                                                 int64_t count, uint8_t* to) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t row = begin; row < end; ++row) {
        to[(row - begin) * kPackedChunk + i] = nibble(words, first + i, row);
      }
    }
  };
  source.scales = scales.of_row(groups);
  source.zeros = [=, words = zeros.bytes.data()](int64_t row, uint8_t* to) {
    for (int64_t g = 0; g < groups; ++g) to[g] = nibble(words, g, row);
  };
  StoredTensor out = packed_tensor(std::move(source));
  tensors.set_bytes(out, kGptqCodes, {kGptqZeros, kGptqScales, kGptqGroups});
  out.settings = block_settings(rows, cols, 1, size);
  return out;
}

}  // namespace

QuantisedLayout gptq_layout() {
  return {.method = "gptq",
          .help = "GPTQ of 2, 3, 4 and 8 bits",
          .marker = kGptqCodes,
          .parts = kGptqParts,
          .needs_no_config = false,
          .read = read_gptq};
}

QuantisedLayout awq_layout() {
  return {.method = "awq",
          .help = "AWQ of 4 bits (gemm)",
          .marker = kGptqCodes,
          .parts = kGptqParts,
          .needs_no_config = false,
          .read = read_awq};
}

}  // namespace jackscrew
