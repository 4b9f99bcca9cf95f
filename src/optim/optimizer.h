// Optimizers: how a gradient becomes an update. One state per trained tensor; a state counts its
// own steps.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/context.h"
#include "tensor/state.h"

namespace jackscrew {

struct OptimizerOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

// Decoupled weight decay, by the kind of weight. Norms and biases usually get none: there is no
// reason for a scale to be near 0.
struct WeightDecay {
  double matrices = 0;  // embedding and head, too
  double vectors = 0;   // norms and biases
};

// Throws Error(usage) where steps with that learning rate, the highest of the schedule, take all of
// a weight away, or more: what is left of it is 1 - rate * decay. `rates` is what the user is told
// of the rate, such as "learning_rate 0.001".
void check_weight_decay(double decay, double rate, const std::string& rates);

class OptimizerState {
 public:
  virtual ~OptimizerState() = default;
  // parameter -= update(gradient * clip_scale), both f32 of the state's size and contiguous; the
  // gradient is zeroed for the next step. Does nothing else when the step is not finite. A part of
  // its own of Ops::in_batches().
  void apply(Context& context, const Tensor& parameter, const Tensor& gradient,
             double learning_rate_scale, double weight_decay) {
    context.ops.begin_part();
    begin(context, learning_rate_scale, weight_decay);
    update(context, parameter, gradient, 0);
  }

  // apply() in halves, for a parameter that exists a piece at a time: begin() counts the step, then
  // each piece is updated once. A piece begins with element `first`, a multiple of kPieceGrain.
  static constexpr int64_t kPieceGrain = 256;
  virtual void begin(Context& context, double learning_rate_scale, double weight_decay) = 0;
  virtual void update(Context& context, const Tensor& parameter, const Tensor& gradient,
                      int64_t first) = 0;

  // Changes the basis of the moments by C = basis_change [n, n], f32: from this call on, gradients,
  // as matrices [count / n, n], come multiplied by C. Moments become M C and V (C ∘ C), see
  // rotate_moments.h. Called outside of steps.
  virtual void rotate(Context& context, const Tensor& basis_change) = 0;

  // Visits what must be saved, under names that begin with `name`.
  virtual void visit(const std::string& name, const StateVisitor& visitor) const = 0;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual const char* name() const = 0;
  // A state for a tensor of `count` elements, booked under Purpose::optimizer.
  virtual std::unique_ptr<OptimizerState> make_state(Memory& memory, int64_t count) const = 0;
};

// A row of the table of optimizers.
struct OptimizerEntry {
  const char* name;
  const char* help;  // what its states are
  std::unique_ptr<Optimizer> (*make)(const OptimizerOptions& options);
};
std::span<const OptimizerEntry> all_optimizers();

// Throws Error(usage) for an unknown name.
std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const OptimizerOptions& options);

}  // namespace jackscrew
