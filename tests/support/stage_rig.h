// A stage with what it needs around it, for tests that a Session cannot express: parts of a
// pipeline, and learners that exist only in a test.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "products/dense.h"
#include "quant/plain.h"
#include "tests/support/golden.h"
#include "tests/support/test_ops.h"

namespace jackscrew {

// A micro-batch that a stage can read: on a CPU, the device's memory is the host's.
class DeviceBatch {
 public:
  explicit DeviceBatch(const MicroBatch& micro, int64_t tokens_before = 0)
      : micro_(micro), target_rows_(micro.target_rows()), before_{tokens_before, 0} {
    batch_ = {view(micro_.ids),           view(micro_.positions),
              view(micro_.cu_seqlens),    view(target_rows_.rows),
              view(target_rows_.targets), Tensor(before_, DType::i64, {2})};
  }
  DeviceBatch(const DeviceBatch&) = delete;
  DeviceBatch& operator=(const DeviceBatch&) = delete;
  operator const Batch&() const { return batch_; }
  int64_t tokens() const { return batch_.tokens(); }

 private:
  static Tensor view(std::vector<int32_t>& values) {
    return {values.data(), DType::i32, {static_cast<int64_t>(values.size())}};
  }
  MicroBatch micro_;
  TargetRows target_rows_;
  int64_t before_[2];
  Batch batch_;
};

class StageRig {
 public:
  using FormatChoice = std::function<FormatPointer(const WeightSpec&)>;

  StageRig(const ModelFiles& files, const StageSpec& spec, Learner& learner,
           std::unique_ptr<Ops> ops = make_test_ops(), FormatChoice format = all_f32)
      : ops_(std::move(ops)),
        format_(std::move(format)),
        scratch_(memory_, Purpose::workspace, kArenaBytes),
        staging_(memory_, Purpose::staging, kArenaBytes),
        stage_(files.config, spec, build(files, learner)) {}

  const Stage& stage() const { return stage_; }
  Ops& ops() { return *ops_; }
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
    ops_->copy(flight.d, d);
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

  // Both halves of a step's micro-batch on a whole model.
  void accumulate(const Batch& batch, bool recompute = false) {
    const auto flight = forward(batch, nullptr, recompute);
    backward_from_loss(batch, *flight);
  }

 private:
  static constexpr int64_t kArenaBytes = int64_t{64} << 20;

  Context context() { return {*ops_, scratch_, &scalars_, true}; }

  StageBuild build(const ModelFiles& files, Learner& learner) {
    learner.plan(weights_of(files.config, StageSpec::whole(files.config)));
    const LearnerContext slots{memory_,
                               memory_,
                               scratch_,
                               &scalars_,
                               *ops_,
                               *optimizer_,
                               42,
                               true,
                               [&files, this](const Weight& weight, const Tensor& out) {
                                 weight.read_original(*ops_, *files.source->find(weight.name()),
                                                      out, staging_);
                               }};
    return {slots,
            learner,
            f32_product(),
            format_,
            [&files, this](Weight& weight) {
              weight.load(*ops_, *files.source->find(weight.name()), staging_);
            },
            512};
  }

  static FormatPointer all_f32(const WeightSpec&) { return lasting(f32_format()); }

  std::unique_ptr<Ops> ops_;
  FormatChoice format_;
  Memory memory_{"device", make_host_backing(), 0};
  std::unique_ptr<Optimizer> optimizer_ = make_optimizer("adamw", {});
  Arena scratch_, staging_;
  StepScalars scalars_{};
  Stage stage_;
};

}  // namespace jackscrew
