#include "formats/quantised_layout.h"

#include <array>
#include <nlohmann/json.hpp>

#include "base/directory.h"
#include "base/error.h"
#include "formats/bitsandbytes.h"
#include "formats/compressed_tensors.h"
#include "formats/exl2.h"
#include "formats/exl3.h"
#include "formats/fp8_weights.h"
#include "formats/gptq.h"
#include "formats/shape.h"

namespace jackscrew {

namespace {

// `usual` is the method of an object that names none.
QuantizationConfig take_config(nlohmann::json fields, std::string where,
                               const char* usual = "gptq") {
  QuantizationConfig config;
  const std::string method = quantization_method(JsonFields(fields, where));
  config.method = method.empty() ? usual : method;
  config.where = std::move(where);
  config.fields = std::make_shared<const nlohmann::json>(std::move(fields));
  return config;
}

// The file that AutoAWQ wrote before it wrote config.json, with the names of that.
nlohmann::json read_awq_file(const fs::path& path) {
  nlohmann::json fields = parse_json(read_text(path), path.string());
  for (const auto& [older, name] :
       {std::pair("w_bit", "bits"), std::pair("q_group_size", "group_size")}) {
    if (fields.contains(older) && !fields.contains(name)) fields[name] = fields[older];
  }
  return fields;
}

}  // namespace

std::span<const QuantisedLayout> quantised_layouts() {
  static const std::array kLayouts = {bitsandbytes_nf4_layout(),
                                      bitsandbytes_fp4_layout(),
                                      bitsandbytes_int8_layout(),
                                      exl2_layout(),
                                      exl3_layout(),
                                      gptq_layout(),
                                      awq_layout(),
                                      pack_quantized_layout(),
                                      byte_quantized_layout(),
                                      fp8_layout()};
  return kLayouts;
}

std::string quantization_method(const JsonFields& fields) {
  const bool loads = fields.boolean("load_in_4bit", false) || fields.boolean("load_in_8bit", false);
  return fields.text("quant_method", loads ? "bitsandbytes" : "");
}

QuantizationConfig read_quantization_config(const fs::path& directory) {
  constexpr const char* kMember = "quantization_config";
  if (const fs::path path = directory / "config.json"; is_there(path, ErrorKind::model)) {
    const std::string where = path.string();
    const nlohmann::json root = parse_json(read_text(path), where);
    if (const nlohmann::json* found = JsonFields(root, where).find(kMember)) {
      return take_config(*found, fmt::format("{}: {}", where, kMember));
    }
  }
  if (const fs::path path = directory / "quantize_config.json"; is_there(path, ErrorKind::model)) {
    return take_config(parse_json(read_text(path), path.string()), path.string());
  }
  if (const fs::path path = directory / "quant_config.json"; is_there(path, ErrorKind::model)) {
    return take_config(read_awq_file(path), path.string(), "awq");
  }
  return {};
}

const SafetensorsEntry& LayerTensors::get(std::string_view suffix) const {
  const SafetensorsEntry* entry = find(suffix);
  if (entry == nullptr) fail(ErrorKind::model, "tensor {} is missing", name(suffix));
  return *entry;
}

const SafetensorsEntry& LayerTensors::get(std::string_view suffix, std::string_view dtype) const {
  const SafetensorsEntry& entry = get(suffix);
  if (entry.dtype != dtype) {
    fail(ErrorKind::model, "tensor {} is {} where {} is expected", name(suffix), entry.dtype,
         dtype);
  }
  return entry;
}

const SafetensorsEntry& LayerTensors::get(std::string_view suffix, std::string_view dtype,
                                          const std::vector<int64_t>& shape) const {
  const SafetensorsEntry& entry = get(suffix);
  if (entry.dtype != dtype || entry.shape != shape) {
    fail(ErrorKind::model, "tensor {} is {} {} where {} {} is expected", name(suffix), entry.dtype,
         shape_text(entry.shape), dtype, shape_text(shape));
  }
  return entry;
}

const SafetensorsEntry& LayerTensors::matrix(std::string_view suffix,
                                             std::string_view dtype) const {
  const SafetensorsEntry& entry = get(suffix, dtype);
  if (entry.shape.size() != 2 || !is_extent(entry.shape[0]) || !is_extent(entry.shape[1])) {
    fail(ErrorKind::model, "tensor {} of shape {} is not a matrix", name(suffix),
         shape_text(entry.shape));
  }
  return entry;
}

void LayerTensors::set_bytes(StoredTensor& weight, std::string_view codes,
                             std::initializer_list<std::string_view> others) const {
  weight.bytes = get(codes).bytes;
  for (const std::string_view part : others) {
    if (const SafetensorsEntry* entry = find(part)) weight.extra_parts.push_back(entry->bytes);
  }
}

std::string block_settings(int64_t rows, int64_t cols, int64_t block_rows, int64_t block_cols) {
  if (rows % block_rows == 0 && cols % block_cols == 0) return {};
  return fmt::format("blocks of {}x{}", block_rows, block_cols);
}

std::optional<std::string> marked_layer(const QuantisedLayout& layout, std::string_view tensor) {
  if (!tensor.ends_with(layout.marker)) return std::nullopt;
  return std::string(tensor.substr(0, tensor.size() - layout.marker.size()));
}

void check_configured(const QuantisedLayout& layout, const QuantizationConfig& config,
                      const std::string& tensor) {
  if (!config.method.empty()) {
    // A configuration without a name says nothing against the tensors.
    const std::string named = quantization_method(JsonFields(*config.fields, config.where));
    const bool is_meant = named.empty() || named == layout.method ||
                          (layout.other_method != nullptr && named == layout.other_method);
    if (is_meant) return;
    throw Error(ErrorKind::model,
                fmt::format("{}: quant_method is {}, but tensor {} is of {}", config.where, named,
                            tensor, layout.method),
                "config.json, or the weights, are those of another model");
  }
  if (layout.needs_no_config) return;
  throw Error(
      ErrorKind::model,
      fmt::format("tensor {} is of a quantised weight, and nothing says how it is to be read",
                  tensor),
      "quantization_config is missing from config.json: take it from where the weights "
      "are from");
}

std::string quantised_layouts_text() {
  std::string text;
  for (const QuantisedLayout& layout : quantised_layouts()) {
    if (layout.help == nullptr) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", layout.help);
  }
  return text;
}

void check_quantization_method(const std::string& method, const std::string& where) {
  for (const QuantisedLayout& layout : quantised_layouts()) {
    if (method == layout.method) return;
  }
  throw Error(ErrorKind::model, fmt::format("{}: quant_method {} is not supported", where, method),
              "use the original weights, a GGUF file, " + quantised_layouts_text());
}

}  // namespace jackscrew
