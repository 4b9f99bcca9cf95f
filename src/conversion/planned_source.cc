#include "conversion/planned_source.h"

#include <algorithm>

#include "base/error.h"
#include "conversion/compare.h"
#include "formats/gguf_names.h"
#include "learners/learner.h"
#include "model/weights.h"
#include "quant/plain.h"

namespace jackscrew {

StoredTensor& PlannedSource::add(const WeightSpec& weight, FormatPointer format) {
  StoredTensor& tensor = tensors_[weight.name];
  tensor.name = weight.name;
  tensor.format = std::move(format);
  tensor.shape = weight.shape();
  return tensor;
}

namespace {

[[noreturn]] void fail_of_values() {
  fail(ErrorKind::generic, "a planned model has no values");
}

}  // namespace

void PlannedSource::add_stored(const WeightSpec& weight, FormatPointer format) {
  add(weight, std::move(format)).transcode = [](int64_t, int, const StorageSink&) {
    fail_of_values();
  };
}

void PlannedSource::add_in_place(const WeightSpec& weight, FormatPointer format) {
  StoredTensor& tensor = add(weight, std::move(format));
  // As on the plan device, bytes without an address.
  const int64_t bytes = tensor.format->storage_bytes(weight.rows, weight.cols);
  tensor.bytes = {static_cast<const uint8_t*>(nullptr), static_cast<size_t>(bytes)};
}

void PlannedSource::add_computed(const WeightSpec& weight, FormatPointer format) {
  add(weight, std::move(format)).computed = [](int64_t, int64_t) -> Tensor { fail_of_values(); };
}

const StoredTensor* PlannedSource::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<std::string> PlannedSource::names() const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors_) out.push_back(name);
  return out;
}

std::shared_ptr<WeightSource> planned_merge(const Recipe& recipe, const ModelFiles& files) {
  const auto learner = find_learner(recipe.learner).make(recipe.options);
  const auto weights = weights_of(files.config, StageSpec::whole(files.config));
  learner->plan(weights);
  // Only whether a weight changes is asked: the merge is never run.
  const AdapterValues none = [](const std::string&, std::initializer_list<int64_t>) {
    return std::span<const float>();
  };
  auto source = std::make_shared<PlannedSource>();
  for (const WeightSpec& weight : weights) {
    if (learner->merge(weight, none)) {
      source->add_computed(weight, unowned(f32_format()));
    } else {
      source->add_stored(weight, files.source == nullptr
                                     ? unowned(find_format(recipe.checkpoint_dtype))
                                     : stored_tensor(files, *files.source, weight).format);
    }
  }
  return source;
}

std::shared_ptr<WeightSource> planned_result(const ModelFiles& files,
                                             const std::vector<SafetensorsSpec>& specs) {
  auto source = std::make_shared<PlannedSource>();
  for (const WeightSpec& weight : weights_of(files.config, StageSpec::whole(files.config))) {
    const auto spec = std::ranges::find(specs, weight.name, &SafetensorsSpec::name);
    const Format* format = spec == specs.end() ? nullptr : format_of_dtype(spec->dtype);
    source->add_stored(weight, unowned(format == nullptr ? f32_format() : *format));
  }
  return source;
}

ModelFiles planned_files(const ModelFiles& model, ModelFormat files,
                         const std::vector<ModelTensor>& tensors) {
  auto source = std::make_shared<PlannedSource>();
  ModelFiles out = model;
  out.origin = kWrittenModel;
  for (const auto& [weight, format] : tensors) {
    // A layout that rounds a tied head makes a matrix of it.
    if (weight.name == head_of(model.config).name) out.config.tie_word_embeddings = false;
    const bool is_coded = format == nullptr;
    const Format& held = is_coded ? f16_format() : *format;
    const bool is_interleaved =
        files == ModelFormat::gguf && gguf_interleaved_heads(model.config, weight.name) > 0;
    const bool lies = held.row_bytes(weight.cols) > 0 && !is_interleaved;
    lies ? source->add_in_place(weight, unowned(held)) : source->add_stored(weight, unowned(held));
  }
  out.source = std::move(source);
  return out;
}

}  // namespace jackscrew
