#include "optim/adamw_8bit.h"

#include "optim/adamw.h"
#include "optim/adamw.rows.h"
#include "optim/adamw_8bit.rows.h"

namespace jackscrew {

namespace {

// Smaller tensors keep f32 states, as in bitsandbytes: norms and biases are few and matter.
constexpr int64_t kSmallest = 4096;

class Adamw8bitState : public OptimizerState {
 public:
  Adamw8bitState(Memory& memory, int64_t count, const OptimizerOptions& options)
      : options_(options),
        m_(memory, Purpose::optimizer, DType::u8, {count}),
        v_(memory, Purpose::optimizer, DType::u8, {count}),
        m_absmax_(memory, Purpose::optimizer, DType::f32,
                  {ceil_div(count, Adamw8bitUpdate::kBlock)}),
        v_absmax_(memory, Purpose::optimizer, DType::f32,
                  {ceil_div(count, Adamw8bitUpdate::kBlock)}),
        factors_(memory, Purpose::optimizer, DType::u8, {sizeof(AdamwFactors)}) {}

  void apply(Context& context, const Tensor& parameter, const Tensor& gradient,
             double learning_rate_scale, double weight_decay) override {
    auto* factors = static_cast<AdamwFactors*>(factors_.view().raw());
    context.ops.launch(
        AdamwPrepare{context.scalars, factors, static_cast<float>(learning_rate_scale),
                     static_cast<float>(weight_decay), options_.beta1, options_.beta2},
        1);
    context.ops.launch(
        Adamw8bitUpdate{signed_dynamic_map(), unsigned_dynamic_map(), context.scalars, factors,
                        parameter.data<float>(), gradient.data<float>(), m_.view().data<uint8_t>(),
                        v_.view().data<uint8_t>(), m_absmax_.view().data<float>(),
                        v_absmax_.view().data<float>(), m_.view().size(), adamw_rule(options_)},
        m_absmax_.view().size());
  }

  void visit(const std::string& name, const StateVisitor& visitor) const override {
    visitor({name + ".m", StateRole::moment, m_.view(), true});
    visitor({name + ".m_absmax", StateRole::moment, m_absmax_.view(), true});
    visitor({name + ".v", StateRole::moment, v_.view(), true});
    visitor({name + ".v_absmax", StateRole::moment, v_absmax_.view(), true});
    visitor({name + ".adamw", StateRole::counter, factors_.view(), true});
  }

 private:
  OptimizerOptions options_;
  OwnedTensor m_, v_;                // u8 [count]
  OwnedTensor m_absmax_, v_absmax_;  // f32 [blocks]; all 0 at first, so that every code means 0
  OwnedTensor factors_;              // AdamwFactors
};

class Adamw8bit : public Optimizer {
 public:
  explicit Adamw8bit(const OptimizerOptions& options)
      : options_(options), for_small_(make_adamw(options)) {}
  const char* name() const override { return "adamw_8bit"; }
  std::unique_ptr<OptimizerState> make_state(Memory& memory, int64_t count) const override {
    if (count < kSmallest) return for_small_->make_state(memory, count);
    return std::make_unique<Adamw8bitState>(memory, count, options_);
  }

 private:
  OptimizerOptions options_;
  std::unique_ptr<Optimizer> for_small_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw_8bit(const OptimizerOptions& options) {
  return std::make_unique<Adamw8bit>(options);
}

}  // namespace jackscrew
