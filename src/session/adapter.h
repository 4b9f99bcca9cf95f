// Adapters beside a model: as they are read, written, and as they settle a recipe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/file.h"
#include "formats/checkpoint.h"
#include "model/stage.h"
#include "recipe/recipe.h"

namespace jackscrew {

struct PeftAdapter;  // formats/peft.h

// Writes the parameters among a run's states as a PEFT adapter directory, whole or not at all.
// `adapter` is what Learner::adapter() says of it, `base_model` what is recorded as the model that
// it is for.
void export_adapter(const StateSource& states, Ops& ops, const nlohmann::json& adapter,
                    const std::string& base_model, const fs::path& directory);

// The bytes of all files that export_adapter() writes.
int64_t adapter_bytes(const StateSource& states, const nlohmann::json& adapter,
                      const std::string& base_model);

// Throws Error(model) where embedding and head are one, `tied`, but learned apart in the adapter.
void require_tying(const PeftAdapter& adapter, bool tied, const fs::path& directory);

// Fills the learner's parameters from a PEFT adapter; what it has of other stages of the model is
// theirs. restored() must follow. Throws Error(model) when they do not match.
void load_adapter(const Stage& stage, Ops& ops, const fs::path& adapter);

// The recipe with the options of the learner that its PEFT adapter was made with; its own stay
// where they are of training alone. Throws Error(usage) where it has another learner or says
// otherwise, Error(model) where the adapter cannot be read.
Recipe with_adapter_options(Recipe recipe);

}  // namespace jackscrew
