#include "learners/lora.h"

#include <nlohmann/json.hpp>

#include "learners/dora_slot.h"
#include "learners/frozen.h"
#include "learners/full.h"
#include "learners/lora_merge.h"
#include "learners/lora_slot.h"

namespace jackscrew {

namespace {

class LoraLearner : public Learner {
 public:
  explicit LoraLearner(const OptionSet& options) : settings_(options) {}

  const char* name() const override { return "lora"; }
  void plan(std::span<const WeightSpec> weights) override { settings_.settle(weights); }
  bool changes(const WeightSpec& weight) const override { return settings_.saves(weight); }

  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) override {
    if (settings_.saves(weight.spec())) return make_full_slot(context, weight);
    const std::optional<LoraShape> shape = settings_.shape_of(weight.spec());
    if (!shape) return std::make_unique<FrozenSlot>();
    if (settings_.use_dora()) {
      return std::make_unique<DoraSlot>(context, weight, settings_, *shape);
    }
    return std::make_unique<LoraSlot>(context, weight, settings_, *shape);
  }

  nlohmann::json adapter() const override { return settings_.to_peft(); }
  WeightMerge merge(const WeightSpec& weight, const AdapterValues& tensors) const override {
    return lora_merge(settings_, weight, tensors);
  }

 private:
  LoraSettings settings_;
};

}  // namespace

std::unique_ptr<Learner> make_lora_learner(const OptionSet& options) {
  return std::make_unique<LoraLearner>(options);
}

}  // namespace jackscrew
