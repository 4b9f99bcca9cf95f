#include "learners/rotary_slot.h"

#include <algorithm>

#include "learners/rotary.rows.h"
#include "optim/squares.h"

namespace jackscrew {

RotarySlot::RotarySlot(const LearnerContext& context, Weight& weight, const Settings& settings)
    : weight_(&weight),
      memory_(&context.memory),
      host_(&context.masters),
      optimizer_(&context.optimizer),
      settings_(settings),
      lane_sums_(context.lane_sums) {
  if (settings.keep_moments) {
    optimizer_->make_state(*memory_, size())->visit(name(), [&](const StateRef& ref) {
      moments_.emplace_back(
          ref, OwnedTensor(*host_, Purpose::optimizer, ref.view.dtype(), {ref.view.size()}));
    });
  }
  if (!weight.as_f32().empty()) return;
  master_.emplace(*host_, weight.name(), weight.rows(), weight.cols(), settings.master);
  const OwnedTensor original(*memory_, Purpose::staging, DType::f32,
                             {weight.rows(), weight.cols()});
  context.original(weight, original.view());
  Context run{context.ops, context.scratch, context.scalars, true};
  master_->store(run, original.view());
  encode_master(run);
}

void RotarySlot::backward(const Gradient& g, const Tensor*) {
  g.add_dw(gradient_.view());
}

void RotarySlot::apply(Context& context, double weight_decay) {
  if (settings_.score) {
    const Arena::Frame frame(context.scratch);
    const Tensor sums = context.scratch.tensor(DType::f64, {chunks_of_squares(size())});
    sum_squares(context.ops, gradient_.view(), sums);
    context.ops.launch(AddTotal{sums.data<double>(), squares_.view().data<double>(), sums.size()},
                       1);
  }
  state_->apply(context, values_, gradient_.view(), learning_rate_scale_, weight_decay);
}

void RotarySlot::visit(const StateVisitor& visitor) const {
  if (learns()) {
    visitor({name(), StateRole::parameter, values_, true});
    visitor(gradient_.state(name()));
    state_->visit(name(), visitor);
    if (settings_.score) visitor({name() + ".squares", StateRole::moment, squares_.view(), true});
    return;
  }
  if (master_) {
    const fs::path file = master_->file();
    visitor({name(), StateRole::master, master_->view(), file.empty(), file});
  } else {
    visitor({name(), StateRole::master, weight_->as_f32(), true});
  }
  if (!has_moments_) return;
  for (const auto& [ref, copy] : moments_) visitor({ref.name, ref.role, copy.view(), ref.save});
}

void RotarySlot::restored(Context& context) {
  if (!learns() && master_) encode_master(context);
}

void RotarySlot::encode_master(Context& context) {
  const Arena::Frame frame(context.scratch);
  const Tensor panel = context.scratch.tensor(
      DType::f32, {std::min(weight_->rows(), encode_panel_rows(weight_->cols())), weight_->cols()});
  weight_->encode(
      context.ops,
      [&](int64_t begin, int64_t end) {
        const Tensor part = panel.rows(0, end - begin);
        master_->fetch(context, begin, end, part);
        return part;
      },
      {}, context.scratch);
}

int64_t RotarySlot::leaving_bytes() const {
  const int64_t gradient = (1 + lane_sums_) * booked_bytes(size() * dtype_size(DType::f32));
  const Format& format = weight_->stored_format();
  const int64_t stored =
      master_ ? booked_bytes(format.storage_bytes(weight_->rows(), weight_->cols())) : 0;
  return stored - gradient - (settings_.score ? booked_bytes(8) : 0);
}

int64_t RotarySlot::moving_bytes() const {
  Memory probe("probe", make_plan_backing(), 0);
  const auto state = optimizer_->make_state(probe, size());
  const int64_t exact = booked_bytes(size() * dtype_size(DType::f32));
  return probe.ledger().total + (master_ ? exact : 0);
}

void RotarySlot::prepare() {
  if (master_) {
    exact_ =
        OwnedTensor(*memory_, Purpose::weights, DType::f32, {weight_->rows(), weight_->cols()});
  }
  state_ = optimizer_->make_state(*memory_, size());
}

void RotarySlot::fetch(Context& context, HostCopy copy) {
  if (master_) master_->fetch(context, 0, weight_->rows(), exact_.view(), copy);
  if (!has_moments_) return;
  size_t at = 0;
  state_->visit(name(), [&](const StateRef& ref) {
    copy_values(context.ops, copy, ref.view, moments_[at++].second.view());
  });
}

void RotarySlot::forget() {
  exact_ = {};
  state_.reset();
}

void RotarySlot::activate(Context& context) {
  if (learns()) return;
  if (master_) weight_->release_storage();
  if (state_ == nullptr) {
    prepare();
    fetch(context, HostCopy::in_order);
  }
  if (master_) weight_->take_out(exact_.view());
  values_ = weight_->as_f32();
  gradient_ =
      GradientBuffer(*memory_, Purpose::gradients, {weight_->rows(), weight_->cols()}, lane_sums_);
  if (settings_.score) squares_ = OwnedTensor(*memory_, Purpose::optimizer, DType::f64, {1});
  has_moments_ = false;
}

void RotarySlot::leave(Context& context) {
  squares_ = {};
  gradient_ = {};
  values_ = {};
  if (master_) weight_->put_back(context.ops, {}, context.scratch);
}

double RotarySlot::save(Context& context, HostCopy copy) {
  if (settings_.keep_moments) {
    size_t at = 0;
    state_->visit(name(), [&](const StateRef& ref) {
      copy_values(context.ops, copy, moments_[at++].second.view(), ref.view);
    });
    has_moments_ = true;
  }
  return master_ ? master_->store(context, exact_.view(), copy) : 0.0;
}

void RotarySlot::release(Context& context) {
  state_.reset();
  exact_ = {};
  if (master_ && settings_.master != DType::f32) encode_master(context);
}

double RotarySlot::flush(Context& context) {
  const double change = save(context, HostCopy::in_order);
  release(context);
  return change;
}

void RotarySlot::will_need() {
  if (master_) master_->will_need();
}

double RotarySlot::take_gradient_score(Context& context) {
  if (!settings_.score) return 0.0;
  double squares = 0.0;
  context.ops.copy(Tensor(&squares, DType::f64, {1}), squares_.view());
  context.ops.zero(squares_.view());
  return squares;
}

}  // namespace jackscrew
