#include "optim/adamw.h"

#include "optim/adamw.rows.h"

namespace jackscrew {

AdamwRule adamw_rule(const OptimizerOptions& options) {
  return {static_cast<float>(1.0 - options.beta1), static_cast<float>(options.beta2),
          static_cast<float>(1.0 - options.beta2), static_cast<float>(options.epsilon)};
}

namespace {

class AdamwState : public OptimizerState {
 public:
  AdamwState(Memory& memory, int64_t count, const OptimizerOptions& options)
      : options_(options),
        m_(memory, Purpose::optimizer, DType::f32, {count}),
        v_(memory, Purpose::optimizer, DType::f32, {count}),
        factors_(memory, Purpose::optimizer, DType::u8, {sizeof(AdamwFactors)}) {}

  void apply(Context& context, const Tensor& parameter, const Tensor& gradient,
             double learning_rate_scale, double weight_decay) override {
    auto* factors = static_cast<AdamwFactors*>(factors_.view().raw());
    context.ops.launch(
        AdamwPrepare{context.scalars, factors, static_cast<float>(learning_rate_scale),
                     static_cast<float>(weight_decay), options_.beta1, options_.beta2},
        1);
    const int64_t count = m_.view().size();
    context.ops.launch(
        AdamwUpdate{factors, parameter.data<float>(), gradient.data<float>(),
                    m_.view().data<float>(), v_.view().data<float>(), count, adamw_rule(options_)},
        ceil_div(count, AdamwUpdate::kChunk));
  }

  void visit(const std::string& name, const StateVisitor& visitor) const override {
    visitor({name + ".m", StateRole::moment, m_.view(), true});
    visitor({name + ".v", StateRole::moment, v_.view(), true});
    visitor({name + ".adamw", StateRole::counter, factors_.view(), true});
  }

 private:
  OptimizerOptions options_;
  OwnedTensor m_, v_;    // f32 [count]
  OwnedTensor factors_;  // AdamwFactors
};

class AdamW : public Optimizer {
 public:
  explicit AdamW(const OptimizerOptions& options) : options_(options) {}
  const char* name() const override { return "adamw"; }
  std::unique_ptr<OptimizerState> make_state(Memory& memory, int64_t count) const override {
    return std::make_unique<AdamwState>(memory, count, options_);
  }

 private:
  OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimizerOptions& options) {
  return std::make_unique<AdamW>(options);
}

}  // namespace jackscrew
