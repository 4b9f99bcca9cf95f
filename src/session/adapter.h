// Adapters beside a model: reading them, writing them, and taking a recipe's options from them.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "formats/checkpoint.h"
#include "model/stage.h"
#include "recipe/recipe.h"

namespace jackscrew {

struct PeftAdapter;  // formats/peft.h
struct PeftTensor;

// Writes the parameters among a run's states as a PEFT adapter directory, whole or not at all.
// `adapter` is the object that Learner::adapter() returns, `base_model` the name to record as that
// of its base model. add(path) puts further files beside, in the directory that appears then.
void export_adapter(const StateSource& states, Ops& ops, const nlohmann::json& adapter,
                    const std::string& base_model, const fs::path& directory,
                    const std::function<void(const fs::path& path)>& add = {});

// The bytes of all files that export_adapter() writes.
int64_t adapter_bytes(const StateSource& states, const nlohmann::json& adapter,
                      const std::string& base_model);

// Throws Error(model) where the model's embedding and head are `tied`, but the adapter has trained
// one of them by itself.
void require_tying(const PeftAdapter& adapter, bool tied, const fs::path& directory);

// The adapter in a directory as it is over a model whose embedding and head are `tied`, or not:
// over an untied one a head that repeats the embedding is among its tensors. Throws what
// read_peft_adapter() and require_tying() throw.
PeftAdapter read_adapter_over(const fs::path& directory, bool tied);

// The recipe that its adapter has over such a model: where read_adapter_over() adds the head,
// modules_to_save has it, too.
Recipe with_head_of_adapter(Recipe recipe, bool tied);

inline constexpr const char* kOtherModel = "the adapter was made for another model";

// Throws Error(model) for a tensor of the adapter that stands beside none of the model's weights.
[[noreturn]] void fail_of_place(const std::string& tensor, const fs::path& directory);
void require_places(const PeftAdapter& adapter, std::span<const WeightSpec> weights,
                    const fs::path& directory);
// Throws Error(model) where a run would train all of an adapter of which PEFT trains a part.
void require_trainable(const Recipe& recipe);
// Throws Error(non_finite) for values of an adapter's tensor that are not finite.
void require_finite(std::span<const float> values, const PeftTensor& tensor,
                    const fs::path& directory);

// Throws Error(model): the adapter in a directory has no such tensor.
[[noreturn]] void fail_without(const std::string& tensor, const fs::path& directory);
// Throws Error(model) unless an adapter's tensor has the shape that the model asks for.
void require_shape(const PeftTensor& tensor, const std::vector<int64_t>& shape,
                   const fs::path& directory);

// Fills the learner's parameters from a PEFT adapter, leaving out tensors of the model's other
// stages. Call Session::restored() afterwards. Throws Error(model) when they do not match, and
// Error(non_finite) for values that are not finite.
void load_adapter(const Stage& stage, Ops& ops, const fs::path& adapter);

// Warns where PEFT would compute something else with the adapter, and where the weights beside
// which it stands are not stored as its factors ask for.
void warn_of_adapter(const Stage& stage, const fs::path& adapter);

// The recipe with the learner's options taken from its PEFT adapter; options that concern training
// alone keep the recipe's values. Throws Error(usage) where the recipe sets another learner or
// other values, or has several adapters; Error(model) where the adapter cannot be read.
Recipe with_adapter_options(Recipe recipe);

// The recipe for a command that does not train: its sessions have a learner only with an adapter.
Recipe without_training(Recipe recipe);

// The recipe for its model alone, or for one that its adapters are merged into.
Recipe without_adapters(Recipe recipe);

}  // namespace jackscrew
