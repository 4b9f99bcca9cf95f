#include "learners/factor.h"

#include <utility>

namespace jackscrew {

Factor::Factor(const LearnerContext& context, std::string name,
               std::initializer_list<int64_t> shape)
    : name_(std::move(name)), value_(context.memory, Purpose::adapters, DType::f32, shape) {
  if (!context.training) return;
  gradient_ = GradientBuffer(context.memory, Purpose::gradients, shape, context.lane_sums);
  state_ = context.optimizer.make_state(context.memory, value().size());
}

void Factor::apply(Context& context, double learning_rate_scale, double weight_decay) {
  state_->apply(context, value(), gradient(), learning_rate_scale, weight_decay);
}

void Factor::visit(const StateVisitor& visitor) const {
  visitor({name_, StateRole::parameter, value(), true});
  if (state_ == nullptr) return;
  visitor(gradient_.state(name_));
  state_->visit(name_, visitor);
}

}  // namespace jackscrew
