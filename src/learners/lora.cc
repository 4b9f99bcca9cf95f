#include "learners/lora.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/shared_names.h"
#include "learners/dora_slot.h"
#include "learners/frozen.h"
#include "learners/full.h"
#include "learners/lora_merge.h"
#include "learners/lora_slot.h"
#include "learners/pissa_slot.h"
#include "quant/plain.h"

namespace jackscrew {

namespace {

class LoraLearner : public Learner {
 public:
  explicit LoraLearner(const OptionSet& options) : settings_(options) {}

  const char* name() const override { return "lora"; }
  void plan(std::span<const WeightSpec> weights) override { settings_.settle(weights); }
  bool changes(const WeightSpec& weight) const override { return settings_.trains_whole(weight); }

  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) override {
    // Before anything is returned: a pipeline's stage without adapters takes part in the sums.
    sum_over_stages_ = context.sum_over_stages;
    plans_only_ = context.ops.plans_only();
    if (settings_.trains_whole(weight.spec())) return make_full_slot(context, weight);
    if (settings_.makes_up_for_rounding() && weight.spec().is_block_matrix()) {
      const Format& format = weight.format();
      base_storage_ = format.can_encode() && &format != &f32_format() ? format.name() : "";
    }
    const std::optional<LoraShape> shape = settings_.shape_of(weight.spec());
    if (!shape) return std::make_unique<FrozenSlot>();
    if (context.training) settings_.require_learning(weight.spec(), *shape);
    if (settings_.use_dora()) {
      return std::make_unique<DoraSlot>(context, weight, settings_, *shape, zero_rows_);
    }
    if (settings_.start() != LoraStart::standard && context.training) {
      count_decomposition(weight, shape->rank);
    }
    if (settings_.start() == LoraStart::pissa && context.training) {
      return std::make_unique<PissaSlot>(context, weight, settings_, *shape, squares_);
    }
    auto slot = std::make_unique<LoraSlot>(context, weight, settings_, *shape);
    if (settings_.start() == LoraStart::loftq && context.training) {
      begin_by_loftq(context, weight, slot->factors(), squares_);
    }
    return slot;
  }

  int64_t decomposition_bytes() const override { return decomposition_bytes_; }
  std::string original_model() const override { return settings_.original_model(); }

  void begin_run(int64_t) override {
    if (plans_only_) return;
    if (settings_.use_dora()) {
      zero_rows_ = sum_over_stages_([&](double before) { return before + zero_rows_; });
    }
    if (settings_.start() == LoraStart::standard) return;
    for (double* sum : {&squares_.weights, &squares_.rounding_error, &squares_.residual}) {
      *sum = sum_over_stages_([&](double before) { return before + *sum; });
    }
    if (settings_.start() != LoraStart::loftq || squares_.rounding_error > 0.0) return;
    throw Error(ErrorKind::usage, "lora_init=loftq: rounding has taken nothing from the weights",
                "they are stored as exactly as their model has them: leave lora_init out");
  }

  LearnerNotes notes() const override {
    LearnerNotes notes;
    if (zero_rows_ > 0.0) {
      notes.warnings.push_back(fmt::format(
          "use_dora: rows of the weights with adapters are 0 ({} in all): they stay so, and other "
          "programs divide by their length; leave their modules out of lora_target, or leave "
          "use_dora out",
          zero_rows_));
    }
    if (settings_.start() == LoraStart::standard) return notes;
    if (squares_.rounding_error == 0.0) {
      notes.lines.push_back("adapters begin as the principal parts of their weights (pissa)");
      return notes;
    }
    notes.lines.push_back(fmt::format(
        "begun by {}: rounding moved the weights by {:.2f}%, {:.2f}% with the adapters "
        "({:.1f}% of its square recovered)",
        settings_.start_name(), share(squares_.rounding_error), share(squares_.residual),
        100.0 * (1.0 - squares_.residual / squares_.rounding_error)));
    return notes;
  }

  nlohmann::json adapter() const override {
    nlohmann::json adapter = settings_.to_peft();
    if (!base_storage_.empty()) adapter[kBaseStorage] = base_storage_;
    return adapter;
  }
  WeightMerge merge(const WeightSpec& weight, const AdapterValues& tensors) const override {
    return lora_merge(settings_, weight, tensors);
  }

 private:
  void count_decomposition(const Weight& weight, int64_t rank) {
    int64_t bytes = approximate_host_bytes(weight.rows(), weight.cols(), rank);
    if (settings_.start() == LoraStart::pissa) {
      // As a saved adapter has it, B lies beside the one that it began from.
      bytes = std::max(bytes, 2 * weight.rows() * rank * static_cast<int64_t>(sizeof(float)));
    }
    decomposition_bytes_ = std::max(decomposition_bytes_, bytes);
  }

  // sqrt(square) in per cent of the norm of the weights.
  double share(double square) const { return 100.0 * std::sqrt(square / squares_.weights); }

  LoraSettings settings_;
  RoundingSquares squares_;
  std::string base_storage_;  // see kBaseStorage; empty: none that could be made again
  double zero_rows_ = 0;      // with DoRA
  int64_t decomposition_bytes_ = 0;
  SumOverStages sum_over_stages_;
  bool plans_only_ = true;
};

}  // namespace

std::unique_ptr<Learner> make_lora_learner(const OptionSet& options) {
  return std::make_unique<LoraLearner>(options);
}

}  // namespace jackscrew
