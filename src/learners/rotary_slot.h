// A weight that is trained from time to time.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "learners/gradient_buffer.h"
#include "learners/learner.h"
#include "learners/master.h"

namespace jackscrew {

// Waits, or is active: exact on the device, with gradient and optimizer state.
class RotarySlot : public LearnerSlot {
 public:
  struct Settings {
    DType master = DType::f32;  // or bf16
    bool keep_moments = false;  // over the time that the weight waits, on the host
    bool score = false;         // measure the gradient, see gradient_score()
  };

  // Weights stored as f32 need no master: they are exact as they lie.
  RotarySlot(const LearnerContext& context, Weight& weight, const Settings& settings);

  bool learns() const override { return !gradient_.empty(); }
  void backward(const Gradient& g, const Tensor* dx) override;
  void apply(Context& context, double weight_decay) override;
  void visit(const StateVisitor& visitor) const override;
  void restored(Context& context) override;

  const std::string& name() const { return weight_->name(); }
  int64_t size() const { return weight_->size(); }
  void set_learning_rate_scale(double scale) { learning_rate_scale_ = scale; }
  // What being active takes of the device beyond waiting, in bytes booked.
  int64_t active_bytes() const;

  // Waiting -> active. Frees the stored form before it takes the exact one, unless that was
  // prepared and fetched.
  void activate(Context& context);
  // Active -> waiting, first half: gives back the gradient and encodes the storage.
  void leave(Context& context);
  // Second half: writes the master, keeps the moments, and gives back the device's. Returns the sum
  // of squared changes since the weight became active (0 where there is no master).
  double flush(Context& context, Master::Copy copy);
  void will_need();

  // For a weight that will be activated: takes the memory of exact values and moments, and fills
  // it. forget() gives it back.
  void prepare();
  void fetch(Context& context, Master::Copy copy);
  void forget();
  // What prepare() takes, and leave() keeps, in bytes booked.
  int64_t moving_bytes() const;

  // A checkpoint will fill the master of a weight that waits.
  void expect_master() {
    if (master_ && !learns()) master_->begin_anew();
  }

  // The sum of the squared gradients of all steps since the weight became active, where Settings
  // ask for it. Before clipping.
  double gradient_score(Context& context) const;
  // Whether the weight has been active, and its moments are kept; a checkpoint can fill them then.
  void expect_moments(bool has) { has_moments_ = settings_.keep_moments && has; }

 private:
  Weight* weight_;
  Memory* memory_;  // of the device
  Memory* host_;    // where masters and kept moments are
  const Optimizer* optimizer_;
  Settings settings_;
  int64_t lane_sums_;
  double learning_rate_scale_ = 1.0;
  std::optional<Master> master_;
  OwnedTensor exact_;                      // f32 [rows, cols], while it moves or is active
  Tensor values_;                          // f32 [rows, cols], while active
  GradientBuffer gradient_;                // f32 [rows, cols], while active
  std::unique_ptr<OptimizerState> state_;  // while it moves or is active
  OwnedTensor squares_;                    // f64 [1], while active, with Settings::score
  // Copies of the state's tensors with their names: with Settings::keep_moments.
  std::vector<std::pair<StateRef, OwnedTensor>> moments_;
  bool has_moments_ = false;  // the copies are in use: the weight waits and has been active before
};

}  // namespace jackscrew
