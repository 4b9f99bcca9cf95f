#include "formats/compressed_tensors.h"

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/fp8_weights.h"
#include "formats/json_text.h"
#include "formats/scale_table.h"
#include "formats/shape.h"
#include "quant/packed_source.h"

namespace jackscrew {

namespace {

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kPacked = ".weight_packed";
constexpr std::string_view kShape = ".weight_shape";
constexpr std::string_view kScale = ".weight_scale";
constexpr std::string_view kZero = ".weight_zero_point";
constexpr std::string_view kGroups = ".weight_g_idx";
constexpr std::array kPackParts = {kPacked, kShape, kScale, kZero, kGroups};
constexpr std::array kByteParts = {kWeight, kScale, kZero, kGroups};

// What a configuration says of the weights that its config_groups are for. Which group a layer is
// in is not asked: only what all of them say counts.
struct WeightSettings {
  std::vector<int64_t> block_structure;  // rows and columns that share a scale; empty: not given
  int64_t group_size = 0;                // columns that do; 0: not given
  int64_t bits = 0;                      // of a code; 0: not given
  bool has_zeros = false;                // `symmetric` is false
  bool is_symmetric = false;             // it is given, and true
  bool has_order = false;                // `actorder` asks for a g_idx
  bool is_in_order = false;              // it is given, and does not
  std::string strategy;                  // what shares a scale; empty: not given
};

void refuse_transforms(const JsonFields& config) {
  const nlohmann::json* transforms = config.find("transform_config");
  if (transforms == nullptr || transforms->empty()) return;
  const nlohmann::json* groups = JsonFields(*transforms, config.where()).find("config_groups");
  if (groups != nullptr && groups->empty()) return;
  throw Error(ErrorKind::model,
              fmt::format("{}: transform_config: its weights want inputs that are transformed as "
                          "the model runs, which is not done",
                          config.where()),
              "quantise the model without transforms");
}

// Refuses formats of sparse weights, of which the tensors that are read here know nothing.
void refuse_sparsity(const JsonFields& config) {
  const auto refuse = [&](const JsonFields& fields) {
    const std::string format = lower_case(fields.text("format", ""));
    constexpr std::array kSparse = {"marlin-24", "sparse-bitmask", "sparse-24-bitmask"};
    if (std::ranges::find(kSparse, format) == kSparse.end()) return;
    throw Error(ErrorKind::model, fmt::format("{}: format {} is not read", fields.where(), format),
                "read are pack-quantized, int-quantized and float-quantized");
  };
  refuse(config);
  const nlohmann::json* sparsity = config.find("sparsity_config");
  if (sparsity == nullptr) return;
  const JsonFields fields(*sparsity, config.where() + ": sparsity_config");
  const nlohmann::json* targets = fields.find("targets");
  const bool is_of_none = targets != nullptr && targets->is_array() && targets->empty();
  if (!is_of_none) refuse(fields);
}

// Whether an `actorder` has the groups of columns in a g_idx. The first files say true for "group".
bool orders_columns(const nlohmann::json* order) {
  if (order == nullptr) return false;
  if (order->is_boolean()) return order->get<bool>();
  const std::string name = order->is_string() ? lower_case(order->get<std::string>()) : "";
  return name == "group" || name == "dynamic";
}

// What all agree on who give a value; Value() where they do not, or nobody does.
template <class Value>
Value agreed(const std::vector<Value>& given) {
  const bool agree =
      std::adjacent_find(given.begin(), given.end(), std::not_equal_to<>()) == given.end();
  return agree && !given.empty() ? given.front() : Value();
}

// Rows and columns that share a scale: [128, 128], or "128x128" in older files.
std::vector<int64_t> block_structure(const JsonFields& weights) {
  constexpr const char* kKey = "block_structure";
  const nlohmann::json* value = weights.find(kKey);
  if (value == nullptr || !value->is_string()) return weights.integers(kKey);
  std::vector<int64_t> block;
  for (const std::string& part : split(weights.text(kKey), 'x')) {
    const std::optional<int64_t> extent = parse_int(part);
    if (!extent) {
      fail(ErrorKind::model, "{}: {} \"{}\" is not of the form 128x128", weights.where(), kKey,
           weights.text(kKey));
    }
    block.push_back(*extent);
  }
  return block;
}

// Throws Error(model) for settings that change what the stored numbers mean.
WeightSettings weight_settings(const QuantizationConfig& config) {
  if (config.fields == nullptr) return {};
  const JsonFields fields(*config.fields, config.where);
  refuse_transforms(fields);
  refuse_sparsity(fields);
  const nlohmann::json* groups = fields.find("config_groups");
  if (groups == nullptr || !groups->is_object()) return {};
  std::vector<std::vector<int64_t>> blocks;
  std::vector<int64_t> sizes, bits;
  std::vector<bool> with_zeros, symmetric, ordered, in_order;
  std::vector<std::string> strategies;
  for (const auto& [name, group] : groups->items()) {
    const std::string where = fmt::format("{}: config_groups: {}", config.where, name);
    const nlohmann::json* weights = JsonFields(group, where).find("weights");
    if (weights == nullptr) continue;
    const JsonFields of(*weights, where);
    const std::vector<int64_t> block = block_structure(of);
    if (!block.empty()) blocks.push_back(block);
    const bool is_of_row = block.size() == 2 && block[0] == 1;
    const int64_t size = of.integer("group_size", is_of_row ? block[1] : 0);  // -1: a whole row
    if (size > 0) sizes.push_back(size);
    bits.push_back(of.integer("num_bits", 0));
    with_zeros.push_back(!of.boolean("symmetric", true));
    symmetric.push_back(of.boolean("symmetric", false));
    ordered.push_back(orders_columns(of.find("actorder")));
    in_order.push_back(of.contains("actorder") && !ordered.back());  // also where it is null
    strategies.push_back(lower_case(of.text("strategy", "")));
  }
  return {.block_structure = agreed(blocks),
          .group_size = agreed(sizes),
          .bits = agreed(bits),
          .has_zeros = agreed(with_zeros),
          .is_symmetric = agreed(symmetric),
          .has_order = agreed(ordered),
          .is_in_order = agreed(in_order),
          .strategy = agreed(strategies)};
}

// The number of groups in a row of `cols` columns, from the shape of the scales.
int64_t group_count(const LayerTensors& tensors, int64_t rows, int64_t cols) {
  const SafetensorsEntry& scale = tensors.get(kScale);
  const bool fits = scale.shape.size() == 2 && scale.shape[0] == rows && scale.shape[1] >= 1 &&
                    scale.shape[1] <= cols;
  if (!fits) {
    fail(ErrorKind::model, "tensor {} of shape {} does not have groups of the {} rows of {}",
         scale.name, shape_text(scale.shape), rows, tensors.layer());
  }
  return scale.shape[1];
}

// Refuses scales that are not of what `strategy` says.
void expect_strategy(const LayerTensors& tensors, const WeightSettings& settings, int64_t cols) {
  const SafetensorsEntry& scale = tensors.get(kScale);
  const int64_t groups = scale.shape.size() == 2 ? scale.shape[1] : 1;
  const bool is_of_rows = settings.strategy == "channel" || settings.strategy == "tensor";
  const bool is_of_groups =
      settings.strategy == "group" && settings.group_size > 0 && settings.group_size < cols;
  if (groups > 1 ? !is_of_rows : !is_of_groups) return;
  fail(ErrorKind::model, "strategy is {}, but tensor {} of shape {} has scales of {}",
       settings.strategy, scale.name, shape_text(scale.shape),
       groups > 1 ? "groups of columns" : "whole rows");
}

// The sizes of `groups` equal groups, of which the last may be shorter where the size is given.
std::vector<int64_t> equal_sizes(int64_t cols, int64_t groups, const WeightSettings& settings,
                                 const std::string& name) {
  const bool is_given = groups > 1 && settings.group_size > 0;
  if (!is_given && cols % groups != 0) {
    throw Error(ErrorKind::model,
                fmt::format("tensor {}: {} groups of {} columns are of no size that config_groups "
                            "agree on",
                            name, groups, cols),
                "read are groups that divide the columns, or one group_size for all layers");
  }
  const int64_t size = is_given ? settings.group_size : cols / groups;
  if (ceil_div(cols, size) != groups) {
    fail(ErrorKind::model, "tensor {}: {} columns do not divide into {} groups{}", name, cols,
         groups, is_given ? fmt::format(" of {}", size) : "");
  }
  return equal_groups(cols, size);
}

// How codes lie in words: as a stream, or as whole codes in each, the word's last bits being left
// over.
struct CodePacking {
  int64_t bits = 0;  // of a code; 0: none that is supported
  bool is_whole = false;

  int64_t in_word() const { return kWordBits / bits; }
  int64_t words(int64_t codes) const {
    return is_whole ? ceil_div(codes, in_word()) : ceil_div(codes * bits, kWordBits);
  }
  // Code `index` of words that lie `stride` words apart.
  uint8_t code(const uint8_t* from, int64_t stride, int64_t index) const {
    if (is_whole) {
      from += index / in_word() * stride * 4;
      index %= in_word();
    }
    return static_cast<uint8_t>(bits_at(from, stride, index, bits));
  }
};

// The packing with which a row fills `words` words. Where several do, as with few columns, the
// configuration tells.
CodePacking code_packing(int64_t cols, int64_t words, const WeightSettings& settings) {
  if (cols <= 0 || cols > INT32_MAX) return {};
  for (const bool is_whole : {false, true}) {
    for (const int64_t bits : {2, 3, 4, 5, 6, 8}) {
      const CodePacking packing{bits, is_whole};
      const bool is_meant = settings.bits == 0 || settings.bits == bits;
      if (is_meant && packing.words(cols) == words) return packing;
    }
  }
  return {};
}

// Refuses a layer without a part that its configuration promises.
void expect_part(const LayerTensors& tensors, std::string_view suffix, bool is_promised,
                 const char* setting) {
  if (is_promised && tensors.find(suffix) == nullptr) {
    fail(ErrorKind::model, "{}, but tensor {} is missing", setting, tensors.name(suffix));
  }
}

void expect_parts(const LayerTensors& tensors, const WeightSettings& settings) {
  expect_part(tensors, kZero, settings.has_zeros, "symmetric is false");
  expect_part(tensors, kGroups, settings.has_order, "actorder orders columns by group");
}

using ReadZeros = std::function<void(int64_t row, uint8_t* zeros)>;

// Zeros as the configuration has them: where that is symmetric, any but the middle is refused.
ReadZeros checked_zeros(const LayerTensors& tensors, const WeightSettings& settings, int64_t groups,
                        int64_t bits, ReadZeros read) {
  if (!settings.is_symmetric) return read;
  return [=, name = tensors.name(kZero), read = std::move(read)](int64_t row, uint8_t* zeros) {
    read(row, zeros);
    const auto middle = static_cast<uint8_t>(1 << (bits - 1));
    if (std::all_of(zeros, zeros + groups, [&](uint8_t zero) { return zero == middle; })) return;
    fail(ErrorKind::model, "symmetric is true, but tensor {} has other zeros than the middle",
         name);
  };
}

// Zeros that are not packed: signed bytes, 0 in the middle of the codes, a row `stride` bytes
// behind the one before it.
ReadZeros signed_zeros(const SafetensorsEntry& zeros, int64_t groups, int64_t stride,
                       int64_t bits) {
  return [=, name = zeros.name, from = zeros.bytes.data()](int64_t row, uint8_t* to) {
    const int middle = 1 << (bits - 1);
    for (int64_t g = 0; g < groups; ++g) {
      const int zero = static_cast<int8_t>(from[row * stride + g]);
      if (zero < -middle || zero >= middle) {
        fail(ErrorKind::model, "tensor {}: {} for row {} is no zero of {} bits", name, zero, row,
             bits);
      }
      to[g] = static_cast<uint8_t>(zero + middle);
    }
  };
}

// Zeros of pack-quantized [rows, groups], packed along rows or, by writers before April 2025, as
// bytes.
ReadZeros packed_zeros(const LayerTensors& tensors, const CodePacking& packing, int64_t rows,
                       int64_t groups) {
  if (tensors.get(kZero).dtype == "I8") {
    return signed_zeros(tensors.get(kZero, "I8", {rows, groups}), groups, groups, packing.bits);
  }
  const SafetensorsEntry& zeros = tensors.get(kZero, "I32", {packing.words(rows), groups});
  return [=, from = zeros.bytes.data()](int64_t row, uint8_t* to) {
    for (int64_t g = 0; g < groups; ++g) to[g] = packing.code(from + g * 4, groups, row);
  };
}

// The group of each column; none where columns are in the order of their groups. In a model that
// was not calibrated all are -1, which stands for none.
std::vector<int32_t> groups_of_columns(const LayerTensors& tensors, int64_t cols) {
  if (tensors.find(kGroups) == nullptr) return {};
  auto group_of = elements_of<int32_t>(tensors.get(kGroups, "I32", {cols}));
  if (group_of[0] == -1) group_of.clear();
  return group_of;
}

// `groups` groups of columns, as the layer orders them.
GroupOrder group_order(const LayerTensors& tensors, int64_t cols, int64_t groups,
                       const WeightSettings& settings) {
  const std::vector<int32_t> group_of = groups_of_columns(tensors, cols);
  GroupOrder order;
  if (!group_of.empty()) order = order_by_group(group_of, groups, tensors.name(kGroups));
  if (!group_of.empty() && !settings.is_in_order) return order;
  std::vector<int64_t> sizes = equal_sizes(cols, groups, settings, tensors.name(kScale));
  if (!group_of.empty() && (!order.columns.empty() || order.sizes != sizes)) {
    fail(ErrorKind::model, "actorder has columns in their own order, but tensor {} in another",
         tensors.name(kGroups));
  }
  order.sizes = std::move(sizes);
  return order;
}

StoredTensor read_packed(const LayerTensors& tensors, const QuantizationConfig& config) {
  const WeightSettings settings = weight_settings(config);
  expect_parts(tensors, settings);
  const SafetensorsEntry& packed = tensors.matrix(kPacked, "I32");
  const int64_t rows = packed.shape[0];
  const int64_t words = packed.shape[1];
  const auto shape = elements_of<int64_t>(tensors.get(kShape, "I64", {2}));
  const int64_t cols = shape[1];
  const CodePacking packing = code_packing(cols, words, settings);
  const int64_t bits = packing.bits;
  if (shape[0] != rows || bits == 0) {
    throw Error(ErrorKind::model,
                fmt::format("tensor {} of shape {} does not hold codes of a matrix [{}, {}]",
                            packed.name, shape_text(packed.shape), shape[0], shape[1]),
                "read are codes of 2 to 6 and 8 bits, as a stream or whole in each word");
  }
  const int64_t groups = group_count(tensors, rows, cols);
  expect_strategy(tensors, settings, cols);
  GroupOrder order = group_order(tensors, cols, groups, settings);
  const ScaleTable scales = read_scales(tensors, kScale, {rows, groups}, groups, 1);
  const bool has_zeros = tensors.find(kZero) != nullptr;
  const PackedZero zero = !has_zeros ? PackedZero::middle
                          : bits > 4 ? PackedZero::eight_bits
                                     : PackedZero::four_bits;
  PackedSource source{
      .name = tensors.name(kWeight),
      .format = fmt::format("packed_{}bit", bits),
      .rows = rows,
      .layout = packed_layout(order.sizes, bits, scales.type, zero, !order.columns.empty()),
      .columns = std::move(order.columns)};
  source.codes = [=, columns = source.columns, from = packed.bytes.data()](
                     int64_t begin, int64_t end, int64_t first, int64_t count, uint8_t* codes) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t k = columns.empty() ? first + i : columns[static_cast<size_t>(first + i)];
        codes[(row - begin) * kPackedChunk + i] = packing.code(from + row * words * 4, 1, k);
      }
    }
  };
  source.scales = scales.of_row(groups);
  if (has_zeros) {
    source.zeros = checked_zeros(tensors, settings, groups, bits,
                                 packed_zeros(tensors, packing, rows, groups));
  }
  StoredTensor out = packed_tensor(std::move(source));
  tensors.set_bytes(out, kPacked, {kScale, kZero, kGroups});
  out.settings = block_settings(rows, cols, 1, order.sizes.front());
  return out;
}

// Reads int-quantized or float-quantized, told apart by the weight's dtype.
StoredTensor read_bytes(const LayerTensors& tensors, const QuantizationConfig& config) {
  const WeightSettings settings = weight_settings(config);
  if (is_fp8(tensors)) {
    StoredTensor out = read_fp8(tensors, kScale, settings.block_structure, settings.group_size);
    if (settings.has_order || !groups_of_columns(tensors, out.shape[1]).empty()) {
      fail(ErrorKind::model, "{}: columns of FP8 that are ordered by group are not read",
           tensors.name(kGroups));
    }
    expect_strategy(tensors, settings, out.shape[1]);
    return out;
  }
  expect_parts(tensors, settings);
  const SafetensorsEntry& codes = tensors.matrix(kWeight, "I8");
  const int64_t rows = codes.shape[0];
  const int64_t cols = codes.shape[1];
  const std::vector<int64_t>& shape = tensors.get(kScale).shape;
  const bool is_shared = shape == std::vector<int64_t>{1};
  const int64_t groups = is_shared ? 1 : group_count(tensors, rows, cols);
  expect_strategy(tensors, settings, cols);
  const ScaleTable scales = read_scales(tensors, kScale, shape, is_shared ? 0 : groups, 1);
  const bool has_zeros = tensors.find(kZero) != nullptr;
  // Turns signed bytes into unsigned codes by adding 128.
  const auto moved = [](uint8_t byte) { return static_cast<uint8_t>(byte ^ 0x80); };
  GroupOrder order = group_order(tensors, cols, groups, settings);
  PackedSource source{
      .name = tensors.name(kWeight),
      .format = "int_8bit",
      .rows = rows,
      .layout = packed_layout(order.sizes, 8, scales.type,
                              has_zeros ? PackedZero::eight_bits : PackedZero::middle,
                              !order.columns.empty()),
      .columns = std::move(order.columns)};
  source.codes = [=, columns = source.columns, from = codes.bytes.data()](
                     int64_t begin, int64_t end, int64_t first, int64_t count, uint8_t* to) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t k = columns.empty() ? first + i : columns[static_cast<size_t>(first + i)];
        to[(row - begin) * kPackedChunk + i] = moved(from[row * cols + k]);
      }
    }
  };
  source.scales = scales.of_row(groups);
  if (has_zeros) {
    const SafetensorsEntry& zeros = tensors.get(kZero, "I8", shape);
    source.zeros = checked_zeros(tensors, settings, groups, 8,
                                 signed_zeros(zeros, groups, scales.row_stride, 8));
  }
  StoredTensor out = packed_tensor(std::move(source));
  tensors.set_bytes(out, kWeight, {kScale, kZero, kGroups});
  out.settings = block_settings(rows, cols, 1, order.sizes.front());
  return out;
}

}  // namespace

QuantisedLayout pack_quantized_layout() {
  return {.method = "compressed-tensors",
          .help = "compressed-tensors (pack-quantized, int-quantized, float-quantized)",
          .marker = kPacked,
          .parts = kPackParts,
          .needs_no_config = true,
          .read = read_packed};
}

QuantisedLayout byte_quantized_layout() {
  return {.method = "compressed-tensors",
          .help = nullptr,  // as above
          .marker = kScale,
          .parts = kByteParts,
          .needs_no_config = true,
          .read = read_bytes,
          .other_method = "fp8"};  // AutoFP8's files
}

}  // namespace jackscrew
