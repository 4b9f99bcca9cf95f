#include "optim/adamw.h"

#include <utility>

#include "optim/adamw.rows.h"
#include "optim/rotate_moments.h"

namespace jackscrew {

AdamwSteps::AdamwSteps(Memory& memory, const OptimizerOptions& options)
    : options_(options), factors_(memory, Purpose::optimizer, DType::u8, {sizeof(AdamwFactors)}) {}

void AdamwSteps::begin(Context& context, double learning_rate_scale, double weight_decay) {
  context.ops.launch(
      AdamwPrepare{context.scalars, static_cast<AdamwFactors*>(factors_.view().raw()),
                   static_cast<float>(learning_rate_scale), static_cast<float>(weight_decay),
                   options_.beta1, options_.beta2},
      1);
}

AdamwRule AdamwSteps::rule() const {
  return {static_cast<float>(1.0 - options_.beta1), static_cast<float>(options_.beta2),
          static_cast<float>(1.0 - options_.beta2), static_cast<float>(options_.epsilon)};
}

void AdamwSteps::visit(const std::string& name, const StateVisitor& visitor) const {
  visitor({name + ".adamw", StateRole::counter, factors_.view(), true});
}

namespace {

class AdamwState : public OptimizerState {
 public:
  AdamwState(Memory& memory, int64_t count, const OptimizerOptions& options)
      : m_(memory, Purpose::optimizer, DType::f32, {count}),
        v_(memory, Purpose::optimizer, DType::f32, {count}),
        steps_(memory, options) {}

  void begin(Context& context, double learning_rate_scale, double weight_decay) override {
    steps_.begin(context, learning_rate_scale, weight_decay);
  }

  void update(Context& context, const Tensor& parameter, const Tensor& gradient,
              int64_t first) override {
    const int64_t count = parameter.size();
    const auto part = [&](const OwnedTensor& moment) {
      return moment.view().columns(first, first + count).data<float>();
    };
    context.ops.launch(
        AdamwUpdate{steps_.factors(), parameter.data<float>(), gradient.data<float>(), part(m_),
                    part(v_), count, steps_.rule()},
        ceil_div(count, AdamwUpdate::kChunk));
  }

  void rotate(Context& context, const Tensor& basis_change) override {
    for (const auto& [moment, order] :
         {std::pair{&m_, Moment::first}, std::pair{&v_, Moment::second}}) {
      const Arena::Frame frame(context.scratch);
      const Tensor matrix = moment->view().reshaped(
          {div_exact(moment->view().size(), basis_change.rows()), basis_change.rows()});
      context.ops.copy(matrix, rotated_moment(context, matrix, basis_change, order));
    }
  }

  void visit(const std::string& name, const StateVisitor& visitor) const override {
    visitor({name + ".m", StateRole::moment, m_.view(), true});
    visitor({name + ".v", StateRole::moment, v_.view(), true});
    steps_.visit(name, visitor);
  }

 private:
  OwnedTensor m_, v_;  // f32 [count]
  AdamwSteps steps_;
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
