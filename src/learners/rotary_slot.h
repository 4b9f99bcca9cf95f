// The slot of a weight that takes turns at being trained (rotary training).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "learners/gradient_buffer.h"
#include "learners/learner.h"
#include "learners/master.h"

namespace jackscrew {

// The weight either waits, or is active: exact on the device, with gradient and optimizer state.
class RotarySlot : public LearnerSlot {
 public:
  struct Settings {
    DType master = DType::f32;  // or bf16
    bool keep_moments = false;  // on the host, while the weight waits
    bool score = false;         // measure the gradient, see take_gradient_score()
  };

  // Weights stored as f32 have no master: their storage is exact.
  RotarySlot(const LearnerContext& context, Weight& weight, const Settings& settings);

  bool learns() const override { return !gradient_.empty(); }
  void backward(const Gradient& g, const Tensor* dx) override;
  void apply(Context& context, double weight_decay) override;
  void visit(const StateVisitor& visitor) const override;
  void restored(Context& context) override;

  const std::string& name() const { return weight_->name(); }
  int64_t size() const { return weight_->size(); }
  void set_learning_rate_scale(double scale) { learning_rate_scale_ = scale; }
  // The device memory that an active weight takes beyond a waiting one, in booked bytes.
  int64_t active_bytes() const { return moving_bytes() - leaving_bytes(); }
  // That which leave() takes beyond what it frees; above 0 only where the storage is larger than
  // the gradient: its parts are padded, and a row of one element has a scale, too.
  int64_t leaving_bytes() const;

  // Waiting -> active. Frees the storage before it allocates the exact values, unless these were
  // prepared and fetched.
  void activate(Context& context);
  // Active -> waiting, first half: frees the gradient and encodes the storage.
  void leave(Context& context);
  // Second half: save() writes the master, and the moments if they are kept, and returns the sum of
  // squared changes since the weight became active (0 unless measures_change()); release() frees
  // both on the device, for which a GPU waits until it has done all its work; flush() does both.
  double save(Context& context, HostCopy copy);
  void release(Context& context);
  double flush(Context& context);
  // A weight without a master keeps no values of before to compare with.
  bool measures_change() const { return master_.has_value(); }
  void will_need();

  // For a weight that will be activated: prepare() allocates its exact values and moments, fetch()
  // fills them, forget() frees them again.
  void prepare();
  void fetch(Context& context, HostCopy copy);
  void forget();
  // The memory that prepare() allocates and leave() does not free, in booked bytes.
  int64_t moving_bytes() const;

  // Call before a checkpoint fills the master of a weight that waits.
  void detach_master_file() {
    if (master_ && !learns()) master_->detach_file();
  }

  // The sum of the squared gradients, before clipping, of all steps since the last call, or since
  // the weight became active; 0 without Settings::score.
  double take_gradient_score(Context& context);
  // Says whether the weight has been active before: its kept moments, if any, are then visited, so
  // that a checkpoint can fill them.
  void set_has_moments(bool has) { has_moments_ = settings_.keep_moments && has; }

 private:
  // Encodes the storage from the master. While a weight waits its storage follows from its master
  // alone, whenever that was written: a master in bf16 is rounded, and a run that goes on from a
  // checkpoint has no other values.
  void encode_master(Context& context);

  Weight* weight_;
  Memory* memory_;  // of the device
  Memory* host_;    // where masters and kept moments are
  const Optimizer* optimizer_;
  Settings settings_;
  int64_t lane_sums_;
  double learning_rate_scale_ = 1.0;
  std::optional<Master> master_;
  OwnedTensor exact_;                      // f32 [rows, cols], while in transit or active
  Tensor values_;                          // f32 [rows, cols], while active
  GradientBuffer gradient_;                // f32 [rows, cols], while active
  std::unique_ptr<OptimizerState> state_;  // while in transit or active
  OwnedTensor squares_;                    // f64 [1], while active, with Settings::score
  // Host copies of the state's tensors, with Settings::keep_moments.
  std::vector<std::pair<StateRef, OwnedTensor>> moments_;
  bool has_moments_ = false;  // the copies are in use: the weight waits and has been active before
};

}  // namespace jackscrew
