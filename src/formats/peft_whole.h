// Modules that a LoRA adapter has as a whole: an embedding and a head, by PEFT's modules_to_save or
// save_embedding_layers.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/peft.h"

namespace jackscrew {

// The modules that may be whole in an adapter, with their paths and tensors.
struct SavedModule {
  std::string_view module, path, tensor;
};
inline constexpr SavedModule kSavedEmbedding{"embed_tokens", "model.embed_tokens",
                                             "model.embed_tokens.weight"};
inline constexpr SavedModule kSavedHead{"lm_head", "lm_head", "lm_head.weight"};
inline constexpr std::array kSaved = {kSavedEmbedding, kSavedHead};

bool is_saved(const std::string& tensor);

// Which modules are whole in an adapter.
struct WholeModules {
  std::vector<std::string> names;
  bool tied = false;  // the embedding is the head as well
  std::optional<PeftTensor> repeated_head = {};
};

// Finds them: `named` in modules_to_save, which must be there, and those that PEFT's
// save_embedding_layers saves besides, which PEFT puts in place of the model's own. Drops what
// repeats another tensor; a head that repeats the embedding is kept apart, as repeated_head.
// `tied`: ensure_weight_tying was set, which says nothing of an untied model. Throws Error(model)
// where a tensor is missing, or is no matrix.
WholeModules take_whole(const std::vector<std::string>& named, bool tied, const std::string& where,
                        std::vector<PeftTensor>& tensors);

}  // namespace jackscrew
