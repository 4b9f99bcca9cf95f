#include "learners/full.h"

#include "learners/gradient_buffer.h"
#include "learners/product_parameter_slot.h"

namespace jackscrew {

namespace {

class FullSlot : public LearnerSlot {
 public:
  FullSlot(const LearnerContext& context, Weight& weight, double learning_rate_scale)
      : weight_(weight), learning_rate_scale_(learning_rate_scale) {
    const int64_t rows = weight.rows();
    const int64_t cols = weight.cols();
    master_ = weight.as_f32();
    if (master_.empty()) {
      owned_master_ = OwnedTensor(context.memory, Purpose::masters, DType::f32, {rows, cols});
      master_ = owned_master_.view();
      context.original(weight, master_);
    }
    if (!context.training) return;
    gradient_ = GradientBuffer(context, {rows, cols});
    state_ = context.optimizer.make_state(context.memory, weight.size());
  }

  bool learns() const override { return true; }

  void backward(const Gradient& g, const Tensor*) override { g.add_dw(gradient_.view()); }

  void apply(Context& context, double weight_decay) override {
    state_->apply(context, master_, gradient_.view(), learning_rate_scale_, weight_decay);
    restored(context);
  }

  void restored(Context& context) override {
    if (!owned_master_.empty()) weight_.publish(context.ops, master_, {}, context.scratch);
  }

  void visit(const StateVisitor& visitor) const override {
    visitor({weight_.name(), StateRole::parameter, master_, true});
    if (state_ == nullptr) return;
    visitor(gradient_.state(weight_.name()));
    state_->visit(weight_.name(), visitor);
  }

 private:
  Weight& weight_;
  double learning_rate_scale_;
  Tensor master_;             // f32 [rows, cols]: the weight's own storage, or owned_master_
  OwnedTensor owned_master_;  // empty when the storage is f32
  GradientBuffer gradient_;   // [rows, cols]; training only
  std::unique_ptr<OptimizerState> state_;  // training only
};

class FullLearner : public Learner {
 public:
  const char* name() const override { return "full"; }
  bool changes(const WeightSpec&) const override { return true; }
  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) override {
    return make_full_slot(context, weight);
  }
};

}  // namespace

std::unique_ptr<Learner> make_full_learner() {
  return std::make_unique<FullLearner>();
}

std::unique_ptr<LearnerSlot> make_full_slot(const LearnerContext& context, Weight& weight,
                                            double learning_rate_scale) {
  const WeightSpec& spec = weight.spec();
  if (spec.kind != WeightKind::product) {
    return std::make_unique<FullSlot>(context, weight, learning_rate_scale);
  }
  const bool has_rate = spec.learning_rate > 0.0 && context.learning_rate > 0.0;
  return make_product_parameter_slot(
      context, weight,
      std::make_unique<FullSlot>(
          context, weight,
          has_rate ? spec.learning_rate / context.learning_rate : learning_rate_scale));
}

}  // namespace jackscrew
