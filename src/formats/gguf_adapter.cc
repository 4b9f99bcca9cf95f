#include "formats/gguf_adapter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "base/checked.h"
#include "base/error.h"
#include "base/half.h"
#include "base/module_patterns.h"
#include "formats/gguf_names.h"
#include "formats/gguf_writer.h"
#include "formats/shape.h"
#include "model/weights.h"
#include "quant/plain.h"
#include "quant/row_encoders.h"
#include "quant/small_values.h"
#include "quant/stored_tensor.h"

namespace jackscrew {

namespace {

using nlohmann::ordered_json;

constexpr const char* kMergeInstead =
    "jackscrew merge model=M adapter=A output=FILE.gguf makes one model of both";

// A tensor of the file, and where its values come from.
struct AdapterPart {
  GgufTensorSpec spec;
  const PeftTensor* from;
  double factor = 1.0;
  int64_t interleaved_heads = 0;
};

// The scales of modules: alpha / rank, or alpha / sqrt(rank) with rsLoRA.
class LoraScales {
 public:
  explicit LoraScales(const ordered_json& settings)
      : alpha_(settings["lora_alpha"].get<double>()),
        use_rslora_(settings["use_rslora"].get<bool>()),
        alphas_(settings.value("alpha_pattern", ordered_json::object())
                    .get<std::map<std::string, double>>()) {}

  // The file's one alpha, which is an f32 there. It is never 0, with which llama.cpp would scale by
  // 1; what is no normal number of f32 is left to B.
  double file_alpha() const { return std::isnormal(static_cast<float>(alpha_)) ? alpha_ : 1.0; }
  // The factor on B with which file_alpha() / rank becomes the module's scale.
  double factor(const std::string& module, int64_t rank) const {
    const double alpha = alphas_.find(module).value_or(alpha_);
    return alpha * (use_rslora_ ? std::sqrt(static_cast<double>(rank)) : 1.0) / file_alpha();
  }

 private:
  double alpha_;
  bool use_rslora_;
  ModuleNumbers alphas_;
};

void refuse_what_has_no_place(const PeftAdapter& adapter) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorKind::model, fmt::format("GGUF has no place for {}", what), kMergeInstead);
  };
  if (adapter.peft_type != "LORA") {
    throw Error(ErrorKind::model,
                fmt::format("GGUF has no place for adapters of type {}", adapter.peft_type),
                "jackscrew generate and chat use them with model=M adapter=A");
  }
  if (adapter.settings.contains("use_dora")) refuse("the learned lengths of DoRA");
  if (adapter.settings.contains("modules_to_save")) refuse("modules trained whole");
}

[[noreturn]] void another_model(const PeftTensor& tensor, const std::string& what) {
  throw Error(ErrorKind::model,
              fmt::format("{} of shape {} {}", tensor.name, shape_text(tensor.shape), what),
              "the adapter was made for another model");
}

// Both factors of every module, in the model's order.
std::vector<AdapterPart> parts_of(const ModelConfig& config, const PeftAdapter& adapter,
                                  const LoraScales& scales, const Format& format) {
  std::map<std::string, const PeftTensor*> tensors;
  for (const PeftTensor& tensor : adapter.tensors) tensors[tensor.name] = &tensor;
  std::vector<AdapterPart> parts;
  for (const WeightSpec& weight : weights_of(config, StageSpec::whole(config))) {
    const std::string path = weight.path();
    const auto a = tensors.find(path + ".lora_A.weight"), b = tensors.find(path + ".lora_B.weight");
    if (!weight.is_block_matrix() || a == tensors.end() || b == tensors.end()) continue;
    const int64_t rank = a->second->shape[0];
    const auto add = [&](const PeftTensor& from, const char* ending, std::vector<int64_t> shape) {
      if (from.shape != shape) another_model(from, "is not the model's " + shape_text(shape));
      const int64_t bytes = checked_mul(shape[0], format.row_bytes(shape[1]));
      parts.push_back(
          {{gguf_name(weight) + ending, *ggml_type(format.name()), shape, bytes}, &from});
    };
    add(*a->second, ".lora_a", {rank, weight.cols});
    add(*b->second, ".lora_b", {weight.rows, rank});
    parts.back().factor = scales.factor(path, rank);
    parts.back().interleaved_heads = gguf_interleaved_heads(config, weight.name);
    tensors.erase(a);
    tensors.erase(b);
  }
  if (!tensors.empty()) another_model(*tensors.begin()->second, "has no place in the model");
  return parts;
}

// Rows of a part that are in memory at once: 1 MiB of values, but whole heads where rows are
// interleaved, since those of a head change places.
int64_t rows_at_once(const AdapterPart& part) {
  constexpr int64_t kValues = int64_t{1} << 18;
  const int64_t rows = part.spec.shape[0];
  const int64_t together = part.interleaved_heads > 0 ? rows / part.interleaved_heads : 1;
  const int64_t fitting = kValues / std::max<int64_t>(1, part.spec.shape[1]);
  return std::max<int64_t>(1, fitting / together) * together;
}

// The values of the rows from `begin` to `end` in the file's order, scaled.
std::vector<float> values_of(const AdapterPart& part, int64_t begin, int64_t end) {
  StoredTensor stored;
  stored.shape = part.from->shape;
  stored.interleaved_heads = part.interleaved_heads;
  const int64_t width = stored.shape[1];
  const std::vector<float> given = part.from->values(begin * width, end * width);
  std::vector<float> values(given.size());
  for (int64_t row = begin; row < end; ++row) {
    const float* from = given.data() + (row - begin) * width;
    std::transform(
        from, from + width, values.data() + (stored.interleaved_row(row) - begin) * width,
        [&](float value) { return static_cast<float>(part.factor * static_cast<double>(value)); });
  }
  return values;
}

// Calls use(rows, values) for all rows of a part, some at a time.
template <class Use>
void for_values(const AdapterPart& part, const Use& use) {
  const int64_t rows = part.spec.shape[0], step = rows_at_once(part);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(rows, begin + step);
    use(end - begin, values_of(part, begin, end));
  }
}

// Throws Error(model) for values that are not finite, and in f16 for those that it cannot hold, or
// only as zeros.
void check_values(const AdapterPart& part, const Format& format) {
  const bool is_f16 = &format == &f16_format();
  float largest = 0.0f;
  LostSquares lost;
  for_values(part, [&](int64_t, const std::vector<float>& values) {
    if (!std::ranges::all_of(values, [](float x) { return std::isfinite(x); })) {
      throw Error(
          ErrorKind::model,
          fmt::format("{} has values beyond f32 once its alpha is in them", part.from->name),
          "look at lora_alpha and alpha_pattern in its adapter_config.json");
    }
    for (const float value : values) {
      largest = std::max(largest, std::abs(value));
      if (is_f16) lost.add(value, to_float(to_f16(value)));
    }
  });
  if (!is_f16) return;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::model, part.from->name + " has " + what, "storage=f32 can");
  };
  if (largest > kLargestF16) {
    refuse(fmt::format("a value of {:.3g}, more than f16 can hold", largest));
  }
  if (!may_vanish(largest) || !lost.are_most()) return;
  refuse(fmt::format("values of at most {:.3g}, too small for f16: most of them would become 0",
                     largest));
}

}  // namespace

int64_t write_gguf_adapter(const fs::path& path, const ModelConfig& config, const std::string& name,
                           const PeftAdapter& adapter, const Format& format) {
  refuse_what_has_no_place(adapter);
  const LoraScales scales(adapter.settings);
  const std::vector<AdapterPart> parts = parts_of(config, adapter, scales, format);
  GgufMetadata metadata;
  metadata.add("general.architecture", gguf_architecture(*config.architecture).name);
  metadata.add("general.type", "adapter");
  metadata.add("general.name", name);
  metadata.add("adapter.type", "lora");
  metadata.add("adapter.lora.alpha", static_cast<float>(scales.file_alpha()));
  std::vector<GgufTensorSpec> specs;
  for (const AdapterPart& part : parts) specs.push_back(part.spec);
  GgufWriter writer(path, metadata, specs);
  for (const AdapterPart& part : parts) {
    check_values(part, format);
    const int64_t cols = part.spec.shape[1], row_bytes = format.row_bytes(cols);
    for_values(part, [&](int64_t rows, const std::vector<float>& values) {
      std::vector<uint8_t> out(static_cast<size_t>(rows * row_bytes));
      for (int64_t row = 0; row < rows; ++row) {
        find_row_encoder(format)->encode(values.data() + row * cols, cols,
                                         out.data() + row * row_bytes);
      }
      writer.write(part.spec.name, out);
    });
  }
  writer.close();
  return static_cast<int64_t>(fs::file_size(path));
}

}  // namespace jackscrew
