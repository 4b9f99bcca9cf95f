#include "learners/fused.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "learners/fused.rows.h"
#include "optim/squares.h"

namespace jackscrew {

namespace {

class FusedSlot : public LearnerSlot {
 public:
  // `previous_norm` and `previous_global_norm`, f32 [1], are the norms of this slot's gradient and
  // of all gradients in the step before; empty: the gradient is not clipped.
  FusedSlot(std::unique_ptr<LearnerSlot> slot, std::string name, double weight_decay,
            OwnedTensor previous_norm, const Tensor& previous_global_norm, float first_share)
      : slot_(std::move(slot)),
        name_(std::move(name)),
        weight_decay_(weight_decay),
        previous_norm_(std::move(previous_norm)),
        previous_global_norm_(previous_global_norm),
        first_share_(first_share) {}

  void complete(Context& context) override {
    if (!learns()) return;
    measure(context);
    slot_->apply(context, weight_decay_);
  }
  void apply(Context&, double) override {}

  bool learns() const override { return slot_->learns(); }
  double gradient_products() const override { return slot_->gradient_products(); }
  bool adds_to_output() const override { return slot_->adds_to_output(); }
  bool transforms_output() const override { return slot_->transforms_output(); }
  void forward(Context& context, const Operand& x, const Tensor& y,
               Accumulate accumulate) override {
    slot_->forward(context, x, y, accumulate);
  }
  void gathered(Context& context, const Tensor& positions, const Tensor& x) override {
    slot_->gathered(context, positions, x);
  }
  Tensor product_gradient(Context& context, const Tensor& dy) const override {
    return slot_->product_gradient(context, dy);
  }
  void backward(const Gradient& g, const Tensor* dx) override { slot_->backward(g, dx); }
  void visit(const StateVisitor& visitor) const override {
    slot_->visit(visitor);
    if (clips()) visitor({name_ + ".grad_norm", StateRole::counter, previous_norm_.view(), true});
  }
  void restored(Context& context) override { slot_->restored(context); }

  // The slot did not learn in the step before: its norm is of an older one.
  void forget_norm(Context& context) const {
    if (clips()) context.ops.zero(previous_norm_.view());
  }

 private:
  bool clips() const { return !previous_norm_.empty(); }

  // Norm, clipping factor and finiteness of this slot's accumulated gradients.
  void measure(Context& context) const {
    const Arena::Frame frame(context.scratch);
    std::vector<Tensor> gradients;
    int64_t chunks = 0;
    visit([&](const StateRef& state) {
      if (state.role != StateRole::gradient) return;
      gradients.push_back(state.view);
      chunks += chunks_of_squares(state.view.size());
    });
    const Tensor partial = context.scratch.tensor(DType::f64, {chunks});
    int64_t first = 0;
    for (const Tensor& gradient : gradients) {
      const int64_t end = first + chunks_of_squares(gradient.size());
      sum_squares(context.ops, gradient, partial.columns(first, end));
      first = end;
    }
    context.ops.launch(FinishOneGradient{partial.data<double>(), context.scalars,
                                         clips() ? previous_global_norm_.data<float>() : nullptr,
                                         clips() ? previous_norm_.view().data<float>() : nullptr,
                                         chunks, first_share_},
                       1);
  }

  std::unique_ptr<LearnerSlot> slot_;
  std::string name_;
  double weight_decay_;
  OwnedTensor previous_norm_;
  Tensor previous_global_norm_;
  float first_share_;  // of max_grad_norm, as long as the step before has no known norm
};

OwnedTensor norm_of_before(const LearnerContext& context) {
  OwnedTensor norm(context.memory, Purpose::optimizer, DType::f32, {1});
  context.ops.zero(norm.view());
  return norm;
}

class FusedLearner : public Learner {
 public:
  FusedLearner(std::unique_ptr<Learner> learner, const FusedOptions& options)
      : learner_(std::move(learner)), options_(options) {}

  bool updates_in_backward() const override { return true; }

  void plan(std::span<const WeightSpec> weights) override {
    tied_ = std::none_of(weights.begin(), weights.end(),
                         [](const WeightSpec& weight) { return weight.module == "lm_head"; });
    first_share_ = 1.0f / std::sqrt(static_cast<float>(weights.size()));
    learner_->plan(weights);
  }

  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) override {
    LearnerContext own = context;
    // A vector's gradient is summed while a matrix' is, and that of a tied embedding from the
    // head's backward to the end: these cannot share the buffer.
    const bool shares =
        !weight.is_vector() && !(tied_ && weight.spec().kind == WeightKind::embedding);
    own.shared_gradients = shares ? options_.shared_gradients : nullptr;
    const WeightDecay& decay = options_.weight_decay;
    auto slot = learner_->make_slot(own, weight);
    OwnedTensor previous_norm;
    if (options_.clips && (slot->learns() || learner_->changes(weight.spec()))) {
      if (previous_global_norm_.empty()) previous_global_norm_ = norm_of_before(context);
      previous_norm = norm_of_before(context);
    }
    auto fused = std::make_unique<FusedSlot>(
        std::move(slot), weight.name(), weight.is_vector() ? decay.vectors : decay.matrices,
        std::move(previous_norm), previous_global_norm_.view(), first_share_);
    slots_.push_back(fused.get());
    return fused;
  }

  const char* name() const override { return learner_->name(); }
  bool changes(const WeightSpec& weight) const override { return learner_->changes(weight); }
  bool updates_in_place(const WeightSpec& weight) const override {
    return learner_->updates_in_place(weight);
  }
  int64_t virtual_tokens() const override { return learner_->virtual_tokens(); }
  std::string original_model() const override { return learner_->original_model(); }
  bool masters_in_files() const override { return learner_->masters_in_files(); }
  void reserve(Context& context) override { learner_->reserve(context); }
  int64_t decomposition_bytes() const override { return learner_->decomposition_bytes(); }
  void begin_run(int64_t total_steps) override { learner_->begin_run(total_steps); }
  bool begin_step(Context& context, int64_t step) override {
    std::vector<FusedSlot*> waited;
    std::ranges::copy_if(slots_, std::back_inserter(waited),
                         [](const FusedSlot* slot) { return !slot->learns(); });
    if (!learner_->begin_step(context, step)) return false;
    for (FusedSlot* slot : waited) {
      if (slot->learns()) slot->forget_norm(context);
    }
    return true;
  }
  void overlap_with_step(Context& context) override {
    learner_->overlap_with_step(context);
    if (previous_global_norm_.empty()) return;
    context.ops.launch(KeepNorm{context.scalars, previous_global_norm_.view().data<float>()}, 1);
  }
  int64_t rehearsal_cases() const override { return learner_->rehearsal_cases(); }
  bool enter_rehearsal_case(Context& context, int64_t rehearsal_case) override {
    return learner_->enter_rehearsal_case(context, rehearsal_case);
  }
  void visit(const StateVisitor& visitor) const override {
    // The state of the model first: a learner may have one for each weight, and those of pipeline
    // stages, one behind the other, are to be the model's.
    if (!previous_global_norm_.empty()) {
      visitor({"fused.grad_norm", StateRole::learner, previous_global_norm_.view(), true});
    }
    learner_->visit(visitor);
  }
  void restored(Context& context) override { learner_->restored(context); }
  LearnerNotes notes() const override { return learner_->notes(); }
  std::vector<LearnerEvent> take_events() override { return learner_->take_events(); }
  nlohmann::json adapter() const override { return learner_->adapter(); }

 private:
  std::unique_ptr<Learner> learner_;
  FusedOptions options_;
  bool tied_ = false;  // the head is the embedding
  float first_share_ = 1.0f;
  OwnedTensor previous_global_norm_;
  std::vector<FusedSlot*> slots_;
};

}  // namespace

std::unique_ptr<Learner> make_fused_learner(std::unique_ptr<Learner> learner,
                                            const FusedOptions& options) {
  return std::make_unique<FusedLearner>(std::move(learner), options);
}

}  // namespace jackscrew
