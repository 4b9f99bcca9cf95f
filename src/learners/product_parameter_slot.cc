#include "learners/product_parameter_slot.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "learners/gradient_buffer.h"
#include "learners/product_parameter_slot.rows.h"

namespace jackscrew {

namespace {

class ProductParameterSlot : public LearnerSlot {
 public:
  ProductParameterSlot(const LearnerContext& context, const Weight& weight,
                       std::unique_ptr<LearnerSlot> inner)
      : weight_(weight), inner_(std::move(inner)) {
    if (!context.training || !weight.spec().begins_from_data) return;
    start_ = GradientBuffer(context.memory, Purpose::gradients, {2, weight.size()},
                            context.window_lane_sums);
  }

  bool learns() const override { return true; }

  void backward(const Gradient& g, const Tensor* dx) override {
    inner_->backward(g, dx);
    if (!start_.empty()) g.add_start(start_.view());
  }

  void apply(Context& context, double /*weight_decay*/) override {
    inner_->apply(context, 0.0);
    if (start_.empty()) return;
    const Tensor values = weight_.as_f32();
    context.ops.launch(TakeStart{start_.view().data<float>(), values.data<float>(), context.scalars,
                                 values.size()},
                       1);
  }

  void restored(Context& context) override { inner_->restored(context); }

  void visit(const StateVisitor& visitor) const override {
    inner_->visit(visitor);
    if (!start_.empty()) visitor(start_.window_state(weight_.name() + ".start"));
  }

 private:
  const Weight& weight_;
  std::unique_ptr<LearnerSlot> inner_;
  GradientBuffer start_;  // [2, size]; zero between steps; empty unless values begin from data
};

}  // namespace

std::unique_ptr<LearnerSlot> make_product_parameter_slot(const LearnerContext& context,
                                                         Weight& weight,
                                                         std::unique_ptr<LearnerSlot> inner) {
  return std::make_unique<ProductParameterSlot>(context, weight, std::move(inner));
}

void check_product_parameters(const Learner& learner, const Product& product,
                              std::span<const WeightSpec> weights) {
  for (const WeightSpec& weight : weights) {
    if (weight.kind != WeightKind::product || learner.changes(weight)) continue;
    throw Error(ErrorKind::usage,
                fmt::format("product={} keeps parameters that learn, such as {}, but learner={} "
                            "trains neither them nor norms",
                            product.name(), weight.name, learner.name()),
                fmt::format("set {}, or use a method that trains norms",
                            product.settings_without_parameters()));
  }
}

void check_option_of_dw(const Learner& learner, const Product& product,
                        std::span<const WeightSpec> weights, const OptionSet& options) {
  const auto [option, advice] = product.option_of_dw_alone();
  const auto changes = [&](const WeightSpec& weight) { return learner.changes(weight); };
  if (option == nullptr || std::ranges::any_of(weights, changes)) return;
  throw Error(
      ErrorKind::usage,
      fmt::format("{}: {}={} is of the gradients of weights that product={} multiplies, but "
                  "learner={} changes none",
                  options.origin(option), option, options.text(option), product.name(),
                  learner.name()),
      fmt::format("{}, or use a method that trains weights, such as full", advice));
}

}  // namespace jackscrew
