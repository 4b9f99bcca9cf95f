// Layouts in which quantising programs store a weight in safetensors files: as several tensors,
// named after the layer, with parameters in config.json. Each layout is a row of the table in
// quantised_layout.cc; adding one takes a pair of files and a row.
#pragma once

#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "formats/json_text.h"
#include "formats/safetensors.h"

namespace jackscrew {

// The `quantization_config` of a model: that member of config.json, or a file beside it
// (quantize_config.json, quant_config.json).
struct QuantizationConfig {
  std::string method;  // quant_method; empty: there is no such configuration
  std::string where;   // for messages
  std::shared_ptr<const nlohmann::json> fields;  // null where `method` is empty
};

// The method that such an object names; empty where it names none. As transformers does, loading in
// 4 or 8 bits means bitsandbytes: its older files have no quant_method.
std::string quantization_method(const JsonFields& fields);

// Reads it from a model directory. Throws Error(model) for a file that is malformed.
QuantizationConfig read_quantization_config(const fs::path& directory);

// The tensors of one layer, by the suffix that follows the layer's name.
class LayerTensors {
 public:
  using Find = std::function<const SafetensorsEntry*(const std::string& name)>;

  LayerTensors(std::string layer, Find find) : layer_(std::move(layer)), find_(std::move(find)) {}

  const std::string& layer() const { return layer_; }  // "model.layers.0.mlp.up_proj"
  std::string name(std::string_view suffix) const { return layer_ + std::string(suffix); }

  // Null where there is none.
  const SafetensorsEntry* find(std::string_view suffix) const { return find_(name(suffix)); }
  // Throw Error(model) naming the tensor if it is missing, or not of that dtype and shape.
  const SafetensorsEntry& get(std::string_view suffix) const;
  const SafetensorsEntry& get(std::string_view suffix, std::string_view dtype) const;
  const SafetensorsEntry& get(std::string_view suffix, std::string_view dtype,
                              const std::vector<int64_t>& shape) const;
  // A matrix of that dtype, of any extents from 1 to those of an int32_t. Throws likewise.
  const SafetensorsEntry& matrix(std::string_view suffix, std::string_view dtype) const;

  // Sets the bytes of a weight in the file: those of `codes`, then those of `others` that exist.
  void set_bytes(StoredTensor& weight, std::string_view codes,
                 std::initializer_list<std::string_view> others) const;

 private:
  std::string layer_;
  Find find_;
};

// Whether a matrix that is read may have so many rows or columns.
inline bool is_extent(int64_t extent) {
  return extent >= 1 && extent <= INT32_MAX;
}

// StoredTensor::settings of blocks of that many rows and columns: empty where they divide the
// matrix, as then the number of scales tells what they are.
std::string block_settings(int64_t rows, int64_t cols, int64_t block_rows, int64_t block_cols);

// The elements of a tensor, whose dtype the caller has checked.
template <class Element>
std::vector<Element> elements_of(const SafetensorsEntry& entry) {
  std::vector<Element> out(entry.bytes.size() / sizeof(Element));
  std::memcpy(out.data(), entry.bytes.data(), out.size() * sizeof(Element));
  return out;
}

struct QuantisedLayout {
  const char* method;  // quant_method
  const char* help;    // what is supported, for messages; null: said by the layout before this one
  // The suffix of a tensor that only layers of this layout have.
  std::string_view marker;
  // The suffixes of all tensors that make up the layer's weight.
  std::span<const std::string_view> parts;
  // Whether the tensors alone identify this layout, without a configuration.
  bool needs_no_config;
  // Puts the weight together, without its name. Throws Error(model) naming what is missing,
  // damaged, or not supported.
  StoredTensor (*read)(const LayerTensors& tensors, const QuantizationConfig& config);
  // The suffix of the weight's own name.
  std::string_view weight = ".weight";
  // Another quant_method that files with such tensors may name; null: none.
  const char* other_method = nullptr;
  // Whether its program rounds the head of a tied model apart from the embedding, and leaves
  // tie_word_embeddings true.
  bool rounds_tied_head = false;
};

std::span<const QuantisedLayout> quantised_layouts();

// The layer to which a tensor belongs, if it is the marker of this layout.
std::optional<std::string> marked_layer(const QuantisedLayout& layout, std::string_view tensor);

// Throws Error(model) where the layout of that tensor needs a configuration and there is none, or
// where there is one that names another method.
void check_configured(const QuantisedLayout& layout, const QuantizationConfig& config,
                      const std::string& tensor);

// The supported layouts, for messages.
std::string quantised_layouts_text();
// Throws Error(model) when no layout has that quant_method.
void check_quantization_method(const std::string& method, const std::string& where);

}  // namespace jackscrew
