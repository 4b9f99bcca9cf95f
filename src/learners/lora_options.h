// The options of LoRA, and what they mean for each weight of the model.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/module_patterns.h"
#include "base/options.h"
#include "quant/weight_spec.h"

namespace jackscrew {

std::span<const OptionSpec> lora_options();

// The adapter of one weight.
struct LoraShape {
  int64_t rank = 0;
  double scale = 0;  // of B A: alpha / rank, or alpha / sqrt(rank) with rsLoRA
};

// How adapters start: with A random and B zero, or from the values of the weights (lora_start.h).
enum class LoraStart : uint8_t { standard, loftq, pissa };

class LoraSettings {
 public:
  // Throws Error(usage) for values that are wrong for every model.
  explicit LoraSettings(const OptionSet& options);

  // Checks the options against all weights of the model. Throws Error(usage) where a name or a
  // pattern matches nothing in it, or what cannot have an adapter.
  void settle(std::span<const WeightSpec> weights);

  // nullopt: the weight has no adapter.
  std::optional<LoraShape> shape_of(const WeightSpec& weight) const;
  // Throws Error(usage) where the adapter of a weight can learn nothing.
  void require_learning(const WeightSpec& weight, const LoraShape& shape) const;
  // Whether the weight is trained as a whole and saved beside the adapters.
  bool trains_whole(const WeightSpec& weight) const;
  double dropout() const { return dropout_; }
  bool use_dora() const { return use_dora_; }
  // The learning rate of B as a multiple of A's (LoRA+).
  double b_learning_rate_ratio() const { return b_learning_rate_ratio_; }

  LoraStart start() const { return start_; }
  const std::string& start_name() const { return start_name_; }
  // Whether the stored values may differ from those before rounding.
  bool rounds() const { return rounds_; }
  // Whether the factors hold what rounding took from the weights: they fit no weights that are
  // stored otherwise. Of an adapter that is loaded, lora_init says how it began.
  bool makes_up_for_rounding() const { return makes_up_for_rounding_; }
  // The model that has the values before rounding; empty: the run's own.
  const std::string& original_model() const { return original_model_; }

  // The contents of PEFT's adapter_config.json. Call after settle().
  nlohmann::json to_peft() const;

 private:
  struct Modules;
  void check_targets(const Modules& modules) const;
  void check_patterns(const Modules& modules) const;
  void check_start(std::span<const WeightSpec> weights) const;
  // The factor of ranks in a saved adapter: with PiSSA it also contains its initial value,
  // subtracted, at the same scale.
  int64_t saved_ranks() const { return start_ == LoraStart::pissa ? 2 : 1; }

  int64_t rank_;
  double alpha_;
  double dropout_;
  bool use_rslora_, use_dora_;
  double b_learning_rate_ratio_;
  ModuleTargets targets_;
  ModuleNumbers ranks_, alphas_;    // of modules that have their own
  std::vector<std::string> saved_;  // modules_to_save: embed_tokens, lm_head
  LoraStart start_;
  std::string start_name_, original_model_;
  bool rounds_, makes_up_for_rounding_;
  std::vector<std::string> peft_targets_;  // target_modules
  bool tied_ = false;                      // the head is the embedding
};

}  // namespace jackscrew
