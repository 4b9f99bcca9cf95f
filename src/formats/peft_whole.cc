#include "formats/peft_whole.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/map_guard.h"

namespace jackscrew {

namespace {

// Further tensors of a module of modules_to_save that PEFT's save_embedding_layers leaves: the same
// again, and the base's own. PEFT computes with neither.
constexpr std::array<std::string_view, 2> kRepeated = {".modules_to_save.weight",
                                                       ".original_module.weight"};

bool is_repeated(const SavedModule& saved, std::string_view tensor) {
  if (!tensor.starts_with(saved.path)) return false;
  return std::ranges::find(kRepeated, tensor.substr(saved.path.size())) != kRepeated.end();
}

// Whether two tensors have the same values. Throws Error(model) where their file was cut short.
bool are_alike(const PeftTensor& a, const PeftTensor& b) {
  const bool alike = a.dtype == b.dtype && std::ranges::equal(a.bytes, b.bytes);
  check_map(a.bytes.data());
  return alike;
}

}  // namespace

bool is_saved(const std::string& tensor) {
  return tensor == kSavedEmbedding.tensor || tensor == kSavedHead.tensor;
}

WholeModules take_whole(const std::vector<std::string>& named, bool tied, const std::string& where,
                        std::vector<PeftTensor>& tensors) {
  const auto is_named = [&](const SavedModule& saved) {
    return std::ranges::find(named, saved.module) != named.end();
  };
  const auto find = [&](const SavedModule& saved) {
    return std::ranges::find(tensors, saved.tensor, &PeftTensor::name);
  };
  for (const SavedModule& saved : kSaved) {
    if (!is_named(saved) && (!tied || named.empty())) continue;
    std::erase_if(tensors,
                  [&](const PeftTensor& tensor) { return is_repeated(saved, tensor.name); });
  }
  WholeModules whole{named, tied};
  for (const SavedModule& saved : kSaved) {
    const auto tensor = find(saved);
    const bool is_there = tensor != tensors.end();
    if (is_there ? tensor->shape.size() != 2 : is_named(saved)) {
      fail(ErrorKind::model, "{}: tensor {}{} is missing, or no matrix", where, kAdapterPrefix,
           saved.tensor);
    }
    if (is_there && !is_named(saved)) whole.names.emplace_back(saved.module);
  }
  const auto embedding = find(kSavedEmbedding);
  const auto head = find(kSavedHead);
  const bool has_embedding = embedding != tensors.end();
  if (head == tensors.end()) {
    // Where neither is named, PEFT puts them in the model, whose head may be its embedding.
    whole.tied = tied || (named.empty() && has_embedding);
    return whole;
  }
  if (is_named(kSavedHead)) {
    whole.tied = tied && (!has_embedding || are_alike(*head, *embedding));
    return whole;
  }
  if (!tied && !named.empty()) return whole;
  // Of an untied model ensure_weight_tying has no effect: the two may differ.
  whole.tied = has_embedding && are_alike(*head, *embedding);
  if (!whole.tied) return whole;
  std::erase(whole.names, kSavedHead.module);
  whole.repeated_head = std::move(*head);
  tensors.erase(head);
  return whole;
}

}  // namespace jackscrew
