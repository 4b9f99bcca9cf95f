#include "learners/lora.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "learners/frozen.h"
#include "learners/lora.rows.h"
#include "quant/plain.h"

namespace jackscrew {

namespace {

constexpr std::array<OptionSpec, 5> kLoraOptions = {{
    {"lora_rank", OptionType::integer, "16", "rank of the adapters", "r lora_r rank", "", 1, 4096},
    {"lora_alpha", OptionType::number, "auto",
     "the adapter is scaled by alpha / rank; auto: twice the rank", "alpha", "auto", 0},
    {"lora_dropout", OptionType::number, "0", "dropout of the adapters' inputs", "", "", 0, 0.99},
    {"lora_target", OptionType::list, "all-linear",
     "modules that get an adapter, by name, or all-linear", "lora_target_modules target_modules"},
    {"use_rslora", OptionType::boolean, "false", "scale by alpha / sqrt(rank)"},
}};

constexpr std::array<const char*, 7> kLinearModules = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                       "gate_proj", "up_proj", "down_proj"};

struct LoraSettings {
  int64_t rank = 0;
  double alpha = 0;
  double dropout = 0;
  bool use_rslora = false;
  std::vector<std::string> target_modules;
};

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

  void apply(Context& context, double weight_decay) {
    state_->apply(context, value(), gradient(), 1.0, weight_decay);
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
  LoraSlot(const LearnerContext& context, const Weight& weight, const LoraSettings& config)
      : rank_(config.rank),
        scale_(static_cast<float>(config.use_rslora
                                      ? config.alpha / std::sqrt(static_cast<double>(config.rank))
                                      : config.alpha / static_cast<double>(config.rank))),
        dropout_(static_cast<float>(config.dropout)),
        tensor_(name_hash(weight.name().c_str())),
        a_(context, factor_name(weight, "lora_A"), config.rank, weight.cols()),
        b_(context, factor_name(weight, "lora_B"), weight.rows(), config.rank) {
    // As PEFT: A as torch's default for a linear layer (uniform, bound 1 / sqrt(in)), B zero.
    const float bound = 1.0f / std::sqrt(static_cast<float>(weight.cols()));
    context.ops.launch(LoraInit{a_.value().data<float>(), context.seed, weight.cols(),
                                name_hash(a_.name().c_str()), bound},
                       config.rank);
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
    a_.apply(context, weight_decay);
    b_.apply(context, weight_decay);
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
  uint32_t tensor_;
  Factor a_;  // [rank, in]
  Factor b_;  // [out, rank]
};

class LoraLearner : public Learner {
 public:
  explicit LoraLearner(const OptionSet& options) {
    config_.rank = options.integer("lora_rank");
    config_.alpha = options.is_word("lora_alpha") ? 2.0 * static_cast<double>(config_.rank)
                                                  : options.number("lora_alpha");
    config_.dropout = options.number("lora_dropout");
    config_.use_rslora = options.boolean("use_rslora");
    for (const std::string& target : options.list("lora_target")) {
      if (target == "all-linear" || target == "all") {
        config_.target_modules.assign(kLinearModules.begin(), kLinearModules.end());
        break;
      }
      if (std::find(kLinearModules.begin(), kLinearModules.end(), target) == kLinearModules.end()) {
        throw Error(ErrorKind::usage, fmt::format("lora_target={} is not a linear module", target),
                    fmt::format("modules: {}", fmt::join(kLinearModules, ", ")));
      }
      config_.target_modules.push_back(target);
    }
    if (config_.target_modules.empty()) {
      throw Error(ErrorKind::usage, "lora_target names no module", "use lora_target=all-linear");
    }
  }

  const char* name() const override { return "lora"; }
  bool changes(const WeightSpec&) const override { return false; }

  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) override {
    const auto& targets = config_.target_modules;
    if (weight.spec().kind != WeightKind::linear ||
        std::find(targets.begin(), targets.end(), weight.spec().module) == targets.end()) {
      return std::make_unique<FrozenSlot>();
    }
    return std::make_unique<LoraSlot>(context, weight, config_);
  }

  nlohmann::json adapter() const override {
    // PEFT declares alpha an integer; whole values are written as such.
    const bool whole = std::abs(config_.alpha) < 1e9 && config_.alpha == std::floor(config_.alpha);
    std::vector<std::string> modules = config_.target_modules;
    std::sort(modules.begin(), modules.end());
    return {{"peft_type", "LORA"},
            {"r", config_.rank},
            {"lora_alpha", whole ? nlohmann::json(static_cast<int64_t>(config_.alpha))
                                 : nlohmann::json(config_.alpha)},
            {"lora_dropout", config_.dropout},
            {"target_modules", modules},
            {"use_rslora", config_.use_rslora},
            {"bias", "none"},
            {"fan_in_fan_out", false},
            {"use_dora", false},
            {"init_lora_weights", true},
            {"modules_to_save", nullptr},
            {"layers_to_transform", nullptr},
            {"layers_pattern", nullptr},
            {"rank_pattern", nlohmann::json::object()},
            {"alpha_pattern", nlohmann::json::object()}};
  }

 private:
  LoraSettings config_;
};

}  // namespace

std::span<const OptionSpec> lora_options() {
  return kLoraOptions;
}

std::unique_ptr<Learner> make_lora_learner(const OptionSet& options) {
  return std::make_unique<LoraLearner>(options);
}

}  // namespace jackscrew
