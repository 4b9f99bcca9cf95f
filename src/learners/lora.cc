#include "learners/lora.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "learners/frozen.h"
#include "learners/lora.rows.h"
#include "quant/plain.h"

namespace jackscrew {

namespace {

// A trained f32 matrix with its gradient and optimizer state.
class Factor {
 public:
  Factor(const LearnerContext& context, std::string name, int64_t rows, int64_t cols)
      : name_(std::move(name)),
        value_(context.memory, Purpose::adapters, DType::f32, {rows, cols}) {
    if (!context.training) return;
    gradient_ = OwnedTensor(context.memory, Purpose::gradients, DType::f32, {rows, cols});
    state_ = context.optimizer.make_state(context.memory, rows * cols);
  }

  const std::string& name() const { return name_; }
  const Tensor& value() const { return value_.view(); }
  const Tensor& gradient() const { return gradient_.view(); }

  void apply(Context& context, double learning_rate_scale, double weight_decay) {
    state_->apply(context, value(), gradient(), learning_rate_scale, weight_decay);
  }

  void visit(const StateVisitor& visitor) const {
    visitor({name_, StateRole::parameter, value(), true});
    if (state_ == nullptr) return;
    visitor({name_ + ".gradient", StateRole::gradient, gradient(), false});
    state_->visit(name_, visitor);
  }

 private:
  std::string name_;
  OwnedTensor value_;
  OwnedTensor gradient_;                   // training only
  std::unique_ptr<OptimizerState> state_;  // training only
};

class LoraSlot : public LearnerSlot {
 public:
  LoraSlot(const LearnerContext& context, const Weight& weight, const LoraSettings& settings,
           const LoraShape& shape)
      : rank_(shape.rank),
        scale_(static_cast<float>(shape.scale)),
        dropout_(static_cast<float>(settings.dropout())),
        b_rate_(settings.b_learning_rate_ratio()),
        tensor_(name_hash(weight.name().c_str())),
        a_(context, factor_name(weight, "lora_A"), rank_, weight.cols()),
        b_(context, factor_name(weight, "lora_B"), weight.rows(), rank_) {
    // As PEFT: A as torch's default for a linear layer (uniform, bound 1 / sqrt(in)), B zero.
    const float bound = 1.0f / std::sqrt(static_cast<float>(weight.cols()));
    context.ops.launch(LoraInit{a_.value().data<float>(), context.seed, weight.cols(),
                                name_hash(a_.name().c_str()), bound},
                       rank_);
  }

  bool learns() const override { return true; }
  bool forms_gradient() const override { return false; }
  bool adds() const override { return true; }

  void forward(Context& context, const Operand& operand, const Tensor& y) override {
    const Arena::Frame frame(context.scratch);
    const Tensor x = dropped(context, operand.x);
    const Tensor thin = down(context, x);
    context.ops.gemm(thin, Transpose::no, converted(context, b_.value(), x.dtype()), Transpose::yes,
                     y, Accumulate::yes);
  }

  void backward(const Gradient& g, const Tensor* dx) override {
    Context& context = g.context();
    const Arena::Frame frame(context.scratch);
    const Tensor x = dropped(context, g.x);  // [tokens, in]
    const Tensor thin = down(context, x);    // [tokens, rank], scaled
    context.ops.gemm(g.dy, Transpose::yes, thin, Transpose::no, b_.gradient(), Accumulate::yes);
    const Tensor dthin = scaled_product(context, g.dy, b_.value(), Transpose::no);
    context.ops.gemm(dthin, Transpose::yes, x, Transpose::no, a_.gradient(), Accumulate::yes);
    if (dx == nullptr) return;
    const Tensor a = converted(context, a_.value(), x.dtype());
    if (!drops(context)) {
      context.ops.gemm(dthin, Transpose::no, a, Transpose::no, *dx, Accumulate::yes);
      return;
    }
    const Tensor branch = context.scratch.tensor(dx->dtype(), {x.rows(), x.cols()});
    context.ops.gemm(dthin, Transpose::no, a, Transpose::no, branch, Accumulate::no);
    drop(context, branch, *dx, true);
  }

  void apply(Context& context, double weight_decay) override {
    a_.apply(context, 1.0, weight_decay);
    b_.apply(context, b_rate_, weight_decay);
  }

  void visit(const StateVisitor& visitor) const override {
    a_.visit(visitor);
    b_.visit(visitor);
  }

 private:
  // "model.layers.0.self_attn.q_proj.weight" -> "model.layers.0.self_attn.q_proj.lora_A.weight"
  static std::string factor_name(const Weight& weight, const char* factor) {
    const std::string suffix = ".weight";
    return weight.name().substr(0, weight.name().size() - suffix.size()) + "." + factor + suffix;
  }

  bool drops(const Context& context) const { return context.training && dropout_ > 0.0f; }

  void drop(Context& context, const Tensor& from, const Tensor& to, bool accumulate) const {
    with_activation(from.dtype(), [&]<class Activation>(Activation) {
      context.ops.launch(
          LoraDropout<Activation>{from.data<Activation>(), to.data<Activation>(), context.scalars,
                                  context.rows, from.cols(), tensor_, dropout_, accumulate},
          from.rows());
    });
  }

  Tensor dropped(Context& context, const Tensor& x) const {
    if (!drops(context)) return x;
    const Tensor out = context.scratch.tensor(x.dtype(), {x.rows(), x.cols()});
    drop(context, x, out, false);
    return out;
  }

  // scale * x Aᵀ, [tokens, rank]
  Tensor down(Context& context, const Tensor& x) const {
    return scaled_product(context, x, a_.value(), Transpose::yes);
  }

  // scale * x op(factor), [tokens, rank], in the dtype of x. Sums are f32 and rounded once.
  Tensor scaled_product(Context& context, const Tensor& x, const Tensor& factor,
                        Transpose transpose) const {
    const Tensor thin = context.scratch.tensor(DType::f32, {x.rows(), rank_});
    context.ops.gemm(x, Transpose::no, converted(context, factor, x.dtype()), transpose, thin,
                     Accumulate::no);
    context.ops.launch(LoraScale{thin.data<float>(), rank_, scale_}, thin.rows());
    return converted(context, thin, x.dtype());
  }

  int64_t rank_;
  float scale_;
  float dropout_;
  double b_rate_;  // of a's learning rate
  uint32_t tensor_;
  Factor a_;  // [rank, in]
  Factor b_;  // [out, rank]
};

class LoraLearner : public Learner {
 public:
  explicit LoraLearner(const OptionSet& options) : settings_(options) {}

  const char* name() const override { return "lora"; }
  void plan(std::span<const WeightSpec> weights) override { settings_.check(weights); }
  bool changes(const WeightSpec&) const override { return false; }

  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) override {
    const std::optional<LoraShape> shape = settings_.shape_of(weight.spec());
    if (!shape) return std::make_unique<FrozenSlot>();
    return std::make_unique<LoraSlot>(context, weight, settings_, *shape);
  }

  nlohmann::json adapter() const override { return settings_.to_peft(); }

 private:
  LoraSettings settings_;
};

}  // namespace

std::unique_ptr<Learner> make_lora_learner(const OptionSet& options) {
  return std::make_unique<LoraLearner>(options);
}

}  // namespace jackscrew
