// A stage with what it needs around it, for tests that a Session cannot express: parts of a
// pipeline, and learners and products that exist only in a test.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "model/init.h"
#include "model/stage.h"
#include "products/dense.h"
#include "quant/plain.h"
#include "tests/support/states.h"
#include "tests/support/test_ops.h"

namespace jackscrew {

// Where the weights of a stage come from.
struct RigModel {
  ModelConfig config;
  // Gives a weight its values; `staging` holds panels.
  std::function<void(Ops&, Weight&, Arena& staging)> fill;
  // See LearnerContext::original.
  std::function<void(Ops&, const Weight&, const Tensor& out, Arena& staging)> original;
};

// Weights at random.
inline RigModel random_model(const ModelConfig& config, uint64_t seed = 1) {
  return {config,
          [config, seed](Ops& ops, Weight& weight, Arena& staging) {
            init_weight(ops, config, seed, weight, staging);
          },
          [config, seed](Ops& ops, const Weight& weight, const Tensor& out, Arena&) {
            init_rows(ops, config, seed, weight.spec(), 0, out);
          }};
}

// How a stage computes.
struct RigChoices {
  std::unique_ptr<Ops> ops = make_test_ops();  // those of a plan book memory alone
  std::function<FormatPointer(const WeightSpec&)> format = [](const WeightSpec&) {
    return unowned(f32_format());
  };
  std::unique_ptr<const Arithmetic> arithmetic = std::make_unique<Arithmetic>(make_f32_product());
};

class StageRig {
 public:
  StageRig(const RigModel& model, const StageSpec& spec, Learner& learner, RigChoices choices = {})
      : choices_(std::move(choices)),
        memory_("device", ops().plans_only() ? make_plan_backing() : make_host_backing(), 0),
        scratch_(memory_, Purpose::workspace, kArenaBytes),
        staging_(memory_, Purpose::staging, kArenaBytes),
        stage_(model.config, spec, build(model, learner)) {}

  const Stage& stage() const { return stage_; }
  Ops& ops() { return *choices_.ops; }
  const Memory& memory() const { return memory_; }
  const Arena& scratch() const { return scratch_; }
  StepScalars& scalars() { return scalars_; }

  // Begins a step whose losses are divided by `targets`.
  void begin(int64_t targets) {
    scalars_ = {};
    scalars_.inverse_targets = static_cast<float>(1.0 / static_cast<double>(targets));
  }

  // A micro-batch under way in this stage: what forward left, and the gradient on its way back.
  struct Flight {
    Arena arena;
    Stash stash;
    Tensor hidden;
    Tensor d;
  };

  std::unique_ptr<Flight> forward(const Batch& batch, const Tensor* input, bool recompute = false) {
    auto flight = std::make_unique<Flight>();
    flight->arena = Arena(memory_, Purpose::activations, kArenaBytes);
    flight->stash.arena = &flight->arena;
    flight->stash.recompute = recompute;
    Context run = context();
    flight->hidden = stage_.forward(run, batch, input, flight->stash);
    flight->d = flight->arena.tensor(DType::f32, {flight->hidden.rows(), flight->hidden.cols()});
    return flight;
  }

  // The last stage's backward begins at the loss, another's at the gradient of the next one's
  // input.
  void backward_from_loss(const Batch& batch, Flight& flight) {
    Context run = context();
    stage_.loss(run, batch, flight.hidden, &flight.d);
    stage_.backward(run, batch, flight.d, flight.stash);
  }
  void backward(const Batch& batch, Flight& flight, const Tensor& d) {
    Context run = context();
    ops().copy(flight.d, d);
    stage_.backward(run, batch, flight.d, flight.stash);
  }

  // Ends a step without clipping.
  void apply(float learning_rate, const WeightDecay& weight_decay) {
    scalars_.learning_rate = learning_rate;
    scalars_.clip_scale = 1.0f;
    scalars_.finite = 1;
    Context run = context();
    stage_.apply(run, weight_decay);
  }

  // The sum of a batch's losses.
  double loss(const Batch& batch) {
    const auto flight = forward(batch, nullptr);
    Context run = context();
    scalars_.loss_sum = 0.0;
    stage_.loss(run, batch, flight->hidden, nullptr);
    return scalars_.loss_sum;
  }

  // States were overwritten from outside.
  void restored() {
    Context run = context();
    stage_.restored(run);
  }

  // Both halves of a step's micro-batch on a whole model.
  void accumulate(const Batch& batch, bool recompute = false) {
    const auto flight = forward(batch, nullptr, recompute);
    backward_from_loss(batch, *flight);
  }

 private:
  static constexpr int64_t kArenaBytes = int64_t{8} << 20;

  Context context() { return {ops(), scratch_, &scalars_, true}; }

  StageBuild build(const RigModel& model, Learner& learner) {
    learner.plan(learnable_of(model.config, StageSpec::whole(model.config), *choices_.arithmetic));
    const LearnerContext slots{
        memory_,
        memory_,
        scratch_,
        &scalars_,
        ops(),
        *optimizer_,
        42,
        true,
        [original = model.original, this](const Weight& weight, const Tensor& out) {
          original(ops(), weight, out, staging_);
        }};
    return {slots,
            learner,
            *choices_.arithmetic,
            choices_.format,
            [fill = model.fill, this](Weight& weight) { fill(ops(), weight, staging_); },
            512};
  }

  RigChoices choices_;
  Memory memory_;
  std::unique_ptr<Optimizer> optimizer_ = make_optimizer("adamw", {});
  Arena scratch_, staging_;
  StepScalars scalars_{};
  Stage stage_;
};

}  // namespace jackscrew
