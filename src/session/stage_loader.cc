#include "session/stage_loader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/map_guard.h"
#include "model/init.h"
#include "quant/plain.h"

namespace jackscrew {

StageLoader::StageLoader(const Recipe& recipe, const ModelFiles& files, const ModelFiles* original,
                         const Learner& learner, Ops& ops, Arena staging, ProgressCallback loaded)
    : recipe_(recipe),
      files_(files),
      original_(original),
      source_(recipe.random_init ? nullptr : files.source.get()),
      learner_(learner),
      ops_(ops),
      staging_(std::move(staging)),
      loaded_(std::move(loaded)) {}

// A model may be configured as tied and hold a different head all the same. transformers then uses
// the file's head; here this is an error, so that neither is dropped silently.
void check_tied(const ModelFiles& files) {
  if (files.source == nullptr || !files.config.tie_word_embeddings) return;
  const StoredTensor* head = files.source->find("lm_head.weight");
  const StoredTensor* embedding = files.source->find("model.embed_tokens.weight");
  if (head == nullptr || embedding == nullptr) return;
  if (head->format != embedding->format || head->shape != embedding->shape ||
      !std::ranges::equal(head->bytes, embedding->bytes)) {
    throw Error(ErrorKind::model,
                fmt::format("{}: tie_word_embeddings is true, but lm_head.weight is not "
                            "model.embed_tokens.weight",
                            files.origin),
                "set tie_word_embeddings to false in config.json, and lm_head.weight is the head");
  }
  files.source->release(*head);
}

void StageLoader::check_tied() const {
  if (source_ != nullptr) jackscrew::check_tied(files_);
}

FormatPointer StageLoader::format(const WeightSpec& weight) const {
  if (weight.is_vector()) return unowned(f32_format());
  const bool changes = learner_.changes(weight);
  // What is saved with an adapter is none of the model beneath it, which `storage` is about.
  if (changes && !learner_.adapter().is_null()) return unowned(f32_format());
  if (recipe_.storage != "keep") {
    // A mixture's name is that of no format.
    const Format* format = format_named(recipe_.storage);
    if (format == nullptr || !format->can_encode()) {
      throw Error(ErrorKind::usage,
                  fmt::format("storage={} is of GGUF files: weights in memory cannot be converted "
                              "to it",
                              recipe_.storage),
                  "merge and export write it; in memory, int8 and nf4 are small");
    }
    if (weight.is_block_matrix() || !format->for_linears_only()) return unowned(*format);
  }
  if (changes && !learner_.updates_in_place(weight)) return unowned(f32_format());
  if (source_ == nullptr) return unowned(find_format(recipe_.checkpoint_dtype));
  const StoredTensor* stored = source_->find(weight.name);
  const bool keep = stored != nullptr && (!changes || stored->format->can_encode());
  return keep ? stored->format : unowned(f32_format());
}

const StoredTensor* StageLoader::stays_in_map(const WeightSpec& weight,
                                              const Format& format) const {
  if (source_ == nullptr || weight.is_vector() || learner_.changes(weight)) return nullptr;
  const StoredTensor* found = source_->find(weight.name);
  if (found == nullptr || found->format.get() != &format) return nullptr;
  const StoredTensor& stored = checked_tensor(files_, *source_, weight);
  return lies_as_storage(stored, weight.cols) ? &stored : nullptr;
}

std::optional<Tensor> StageLoader::mapped(const WeightSpec& weight, const Format& format) {
  const StoredTensor* const stored = stays_in_map(weight, format);
  if (stored == nullptr) return std::nullopt;
  const int64_t bytes = format.storage_bytes(weight.rows, weight.cols);
  if (ops_.plans_only()) return Tensor(nullptr, DType::u8, {bytes});
  if (loaded_) loaded_(bytes);
  read_in_place(stored->bytes.data());
  return Tensor(const_cast<uint8_t*>(stored->bytes.data()), DType::u8, {bytes});
}

void StageLoader::require_mapped() const {
  if (recipe_.weights != WeightPlace::mmap) return;
  // Of the whole model: a stage of a pipeline may be one without any.
  const std::vector<WeightSpec> weights =
      weights_of(files_.config, StageSpec::whole(files_.config));
  const bool any_stays = std::ranges::any_of(weights, [&](const WeightSpec& weight) {
    return stays_in_map(weight, *format(weight)) != nullptr;
  });
  if (any_stays) return;
  const auto refuse = [](const std::string& reason, const char* hint) {
    throw Error(ErrorKind::usage, "weights=mmap, but " + reason, hint);
  };
  if (source_ == nullptr) refuse("the weights come from no file", "leave weights=auto");
  const bool all_change = std::ranges::all_of(weights, [&](const WeightSpec& weight) {
    return weight.is_vector() || learner_.changes(weight);
  });
  if (all_change) {
    refuse(fmt::format("learner={} changes the weights", learner_.name()),
           "leave weights=auto, or use method=lora");
  }
  if (recipe_.storage != "keep") {
    refuse(fmt::format("storage={} is not what the file has", recipe_.storage),
           "use storage=keep, or leave weights=auto");
  }
  refuse(fmt::format("no matrix of {} lies there as it is read", files_.origin),
         "leave weights=auto: such files are brought into another order, or to aligned places, "
         "while they load");
}

int64_t mapped_bytes(const Stage& stage) {
  int64_t bytes = 0;
  for (const auto& parameter : stage.parameters()) {
    if (parameter->weight->is_mapped()) bytes += parameter->weight->storage().bytes.bytes();
  }
  return bytes;
}

void StageLoader::fill(Weight& weight) {
  if (source_ == nullptr) {
    init_weight(ops_, files_.config, recipe_.seed, weight, staging_);
  } else {
    const auto load = [&](const StoredTensor& stored) { weight.load(ops_, stored, staging_); };
    source_->release(checked_tensor(files_, *source_, weight.spec(), load));
  }
  if (loaded_) loaded_(weight.storage().bytes.bytes());
}

void StageLoader::read_original(const Weight& weight, const Tensor& out) {
  if (original_ == nullptr && source_ == nullptr) {
    return init_rows(ops_, files_.config, recipe_.seed, weight.spec(), 0, out);
  }
  const ModelFiles& files = original_ != nullptr ? *original_ : files_;
  files.source->release(checked_tensor(
      files, *files.source, weight.spec(),
      [&](const StoredTensor& stored) { weight.read_original(ops_, stored, out, staging_); }));
}

}  // namespace jackscrew
