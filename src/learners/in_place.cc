#include "learners/in_place.h"

#include <algorithm>

#include "base/philox.h"
#include "learners/gradient_buffer.h"

namespace jackscrew {

namespace {

class InPlaceSlot : public LearnerSlot {
 public:
  InPlaceSlot(const LearnerContext& context, Weight& weight, bool stochastic)
      : weight_(weight), stochastic_(stochastic) {
    if (!context.training) return;
    gradient_ = GradientBuffer(context, {weight.rows(), weight.cols()});
    state_ = context.optimizer.make_state(context.memory, weight.size());
  }

  bool learns() const override { return true; }

  void backward(const Gradient& g, const Tensor*) override { g.add_dw(gradient_.view()); }

  void apply(Context& context, double weight_decay) override {
    state_->begin(context, 1.0, weight_decay);
    const auto update = [&](const Tensor& values, int64_t begin, int64_t end) {
      state_->update(context, values, gradient_.view().rows(begin, end), begin * weight_.cols());
    };
    update_in_place(context, weight_, stochastic_, update);
  }

  void visit(const StateVisitor& visitor) const override {
    visitor(in_place_state(weight_));
    if (state_ == nullptr) return;
    visitor(gradient_.state(weight_.name()));
    state_->visit(weight_.name(), visitor);
  }

 private:
  Weight& weight_;
  bool stochastic_;
  GradientBuffer gradient_;                // [rows, cols]; training only
  std::unique_ptr<OptimizerState> state_;  // training only
};

}  // namespace

void update_in_place(Context& context, Weight& weight, bool stochastic, const RowUpdate& update) {
  if (const Tensor values = weight.as_f32(); !values.empty()) {
    update(values, 0, weight.rows());
    return;
  }
  const Arena::Frame frame(context.scratch);
  // An update that is a product is faster on more rows than one panel of encode() has.
  constexpr int64_t kPanels = 4;
  const int64_t step = std::min(weight.rows(), kPanels * encode_panel_rows(weight.cols()));
  const Tensor block = context.scratch.tensor(DType::f32, {step, weight.cols()});
  int64_t block_begin = 0, block_end = 0;  // `block` holds rows [block_begin, block_end)
  const auto source = [&](int64_t begin, int64_t end) {
    if (end > block_end) {
      block_begin = begin;
      block_end = std::min(weight.rows(), begin + step);
      const Tensor values = block.rows(0, block_end - block_begin);
      weight.decode(context.ops, block_begin, block_end, values);
      update(values, block_begin, block_end);
    }
    return block.rows(begin - block_begin, end - block_begin);
  };
  weight.encode(context.ops, source,
                Rounding{.stochastic = stochastic,
                         .scalars = context.scalars,
                         .tensor = name_hash(weight.name().c_str()),
                         .in_place = true},
                context.scratch);
}

StateRef in_place_state(const Weight& weight) {
  if (const Tensor values = weight.as_f32(); !values.empty()) {
    return {weight.name(), StateRole::parameter, values, true};
  }
  return {.name = weight.name() + "." + weight.format().name(),
          .role = StateRole::stored,
          .view = weight.storage().bytes,
          .save = true,
          .elements = weight.size()};
}

std::unique_ptr<LearnerSlot> make_in_place_slot(const LearnerContext& context, Weight& weight,
                                                bool stochastic) {
  return std::make_unique<InPlaceSlot>(context, weight, stochastic);
}

}  // namespace jackscrew
