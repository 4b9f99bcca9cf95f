#include "optim/adamw_8bit.h"

#include "optim/adamw.h"
#include "optim/adamw_8bit.rows.h"
#include "optim/rotate_moments.h"

namespace jackscrew {

namespace {

static_assert(kMomentBlock == OptimizerState::kPieceGrain);

// Smaller tensors keep f32 states, as in bitsandbytes: norms and biases are few and matter.
constexpr int64_t kSmallest = 4096;

class Adamw8bitState : public OptimizerState {
 public:
  Adamw8bitState(Memory& memory, int64_t count, const OptimizerOptions& options)
      : m_(memory, Purpose::optimizer, DType::u8, {count}),
        v_(memory, Purpose::optimizer, DType::u8, {count}),
        m_absmax_(memory, Purpose::optimizer, DType::f32, {ceil_div(count, kMomentBlock)}),
        v_absmax_(memory, Purpose::optimizer, DType::f32, {ceil_div(count, kMomentBlock)}),
        steps_(memory, options) {}

  void begin(Context& context, double learning_rate_scale, double weight_decay) override {
    steps_.begin(context, learning_rate_scale, weight_decay);
  }

  void update(Context& context, const Tensor& parameter, const Tensor& gradient,
              int64_t first) override {
    const int64_t count = parameter.size();
    const int64_t first_block = div_exact(first, kMomentBlock);
    const int64_t blocks = ceil_div(count, kMomentBlock);
    const auto codes = [&](const OwnedTensor& moment) {
      return moment.view().columns(first, first + count).data<uint8_t>();
    };
    const auto scales = [&](const OwnedTensor& absmax) {
      return absmax.view().columns(first_block, first_block + blocks).data<float>();
    };
    const Adamw8bitUpdate update{signed_dynamic_map(),
                                 unsigned_dynamic_map(),
                                 context.scalars,
                                 steps_.factors(),
                                 parameter.data<float>(),
                                 gradient.data<float>(),
                                 codes(m_),
                                 codes(v_),
                                 scales(m_absmax_),
                                 scales(v_absmax_),
                                 count,
                                 first_block,
                                 steps_.rule()};
    context.ops.launch(update, update.rows());
  }

  void rotate(Context& context, const Tensor& basis_change) override {
    rotate(context, basis_change, Moment::first, signed_dynamic_map(), m_.view(), m_absmax_.view());
    rotate(context, basis_change, Moment::second, unsigned_dynamic_map(), v_.view(),
           v_absmax_.view());
  }

  void visit(const std::string& name, const StateVisitor& visitor) const override {
    visitor({name + ".m", StateRole::moment, m_.view(), true});
    visitor({name + ".m_absmax", StateRole::moment, m_absmax_.view(), true});
    visitor({name + ".v", StateRole::moment, v_.view(), true});
    visitor({name + ".v_absmax", StateRole::moment, v_absmax_.view(), true});
    steps_.visit(name, visitor);
  }

 private:
  static void rotate(Context& context, const Tensor& basis_change, Moment order,
                     const DynamicMap& map, const Tensor& codes, const Tensor& absmax) {
    const Arena::Frame frame(context.scratch);
    const int64_t count = codes.size();
    const Tensor values = context.scratch.tensor(
        DType::f32, {div_exact(count, basis_change.rows()), basis_change.rows()});
    context.ops.launch(DecodeMoments{map, codes.data<uint8_t>(), absmax.data<float>(),
                                     values.data<float>(), count},
                       absmax.size());
    const Tensor rotated = rotated_moment(context, values, basis_change, order);
    context.ops.launch(
        EncodeMoments{map, context.scalars, rotated.data<float>(), codes.data<uint8_t>(),
                      absmax.data<float>(), count, order == Moment::second},
        absmax.size());
  }

  OwnedTensor m_, v_;                // u8 [count]
  OwnedTensor m_absmax_, v_absmax_;  // f32 [blocks]; all 0 at first, so that every code means 0
  AdamwSteps steps_;
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
