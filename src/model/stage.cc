#include "model/stage.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/rows/loss.rows.h"
#include "kernels/rows/model.rows.h"
#include "quant/plain.h"

namespace jackscrew {

namespace {

// Bytes of a chunk of logits. The head reads its weight once per chunk and product: at 49152 x 576
// and 320 rows its products ran at 86 to 108 % of a square product's speed. 256 rows divide the
// usual 2048 tokens evenly.
constexpr int64_t kLogitsBytes = int64_t{48} << 20;

// Parameters by layer, kind and module.
class Index {
 public:
  explicit Index(const std::vector<std::unique_ptr<Parameter>>& parameters) {
    for (const auto& parameter : parameters) {
      const WeightSpec& spec = parameter->weight->spec();
      parameters_[{spec.layer, spec.kind, spec.module}] = parameter.get();
    }
  }
  // nullptr where the list of weights has none.
  Parameter* find(int64_t layer, WeightKind kind, const std::string& module) const {
    const auto found = parameters_.find({layer, kind, module});
    return found == parameters_.end() ? nullptr : found->second;
  }

 private:
  std::map<std::tuple<int64_t, WeightKind, std::string>, Parameter*> parameters_;
};

std::unique_ptr<Parameter> make_parameter(const StageBuild& build, const WeightSpec& spec) {
  auto parameter = std::make_unique<Parameter>();
  FormatPointer format = build.format(spec);
  const std::optional<Tensor> mapped = build.mapped ? build.mapped(spec, *format) : std::nullopt;
  if (mapped) {
    parameter->weight = std::make_unique<Weight>(spec, std::move(format), *mapped);
  } else {
    parameter->weight = std::make_unique<Weight>(build.slots.memory, spec, std::move(format));
    build.fill(*parameter->weight);
  }
  LearnerContext slots = build.slots;
  slots.operand_dtype = build.arithmetic.product_of(spec).operand_dtype();
  parameter->slot = build.learner.make_slot(slots, *parameter->weight);
  return parameter;
}

// Rows of logits that exist at once: as many as fill kLogitsBytes, but at least
// Ops::product_rows(), or gradient_rows() where the gradient of the head's weight is formed.
int64_t loss_chunk_rows(const Ops& ops, int64_t vocab_size, bool forms_gradient) {
  const int64_t fewest = forms_gradient ? ops.gradient_rows() : ops.product_rows();
  return std::max(fewest, kLogitsBytes / (vocab_size * 4) / 32 * 32);
}

}  // namespace

std::vector<WeightSpec> learnable_of(const ModelConfig& config, const StageSpec& stage,
                                     const Arithmetic& arithmetic) {
  std::vector<WeightSpec> out = weights_of(config, stage);
  for (const WeightSpec& linear : linears_of(config, stage)) {
    const std::vector<WeightSpec> beside = arithmetic.product_of(linear).parameters(linear);
    out.insert(out.end(), beside.begin(), beside.end());
  }
  return out;
}

std::vector<WeightSpec> multiplied_by_product(const ModelConfig& config, const StageSpec& stage,
                                              const Arithmetic& arithmetic) {
  std::vector<WeightSpec> out = weights_of(config, stage);
  std::erase_if(out, [&](const WeightSpec& weight) {
    const bool is_tied_head = weight.kind == WeightKind::embedding && config.tie_word_embeddings;
    if (weight.kind != WeightKind::linear && !is_tied_head) return true;
    return &arithmetic.product_of(is_tied_head ? head_of(config) : weight) != &arithmetic.product();
  });
  return out;
}

Stage::Stage(const ModelConfig& config, const StageSpec& spec, const StageBuild& build)
    : config_(config),
      spec_(spec),
      types_(ActivationTypes::of(build.arithmetic, build.slots.ops)),
      rope_(make_rope_table(config, build.max_positions, build.later_positions, build.slots.memory,
                            build.slots.ops)) {
  for (const WeightSpec& weight : weights_of(config_, spec)) {
    parameters_.push_back(make_parameter(build, weight));
  }
  const Index index(parameters_);
  embedding_ = index.find(-1, WeightKind::embedding, "embed_tokens");
  for (int64_t layer = spec.first_block; layer < spec.last_block; ++layer) {
    const auto find_norm = [&](const char* module) -> std::optional<Norm> {
      Parameter* parameter = index.find(layer, WeightKind::norm, module);
      if (parameter == nullptr) return std::nullopt;
      return Norm(*parameter, config_.rms_norm_eps);
    };
    const auto linear = [&](const char* module) {
      Parameter& parameter = *index.find(layer, WeightKind::linear, module);
      return make_linear(build, parameter, index.find(layer, WeightKind::bias, module),
                         parameter.weight->spec());
    };
    blocks_.emplace_back(config_, layer, spec.first_block,
                         BlockLayers{.norm1 = *find_norm("input_layernorm"),
                                     .q = linear("q_proj"),
                                     .k = linear("k_proj"),
                                     .v = linear("v_proj"),
                                     .q_norm = find_norm("q_norm"),
                                     .k_norm = find_norm("k_norm"),
                                     .o = linear("o_proj"),
                                     .norm2 = *find_norm("post_attention_layernorm"),
                                     .gate = linear("gate_proj"),
                                     .up = linear("up_proj"),
                                     .down = linear("down_proj")},
                         types_, rope_);
  }
  if (spec.head) {
    final_norm_ =
        std::make_unique<Norm>(*index.find(-1, WeightKind::norm, "norm"), config_.rms_norm_eps);
    Parameter* head = index.find(-1, WeightKind::linear, "lm_head");
    head_ = std::make_unique<Linear>(
        make_linear(build, head != nullptr ? *head : *embedding_, nullptr, head_of(config_)));
  }
}

Linear Stage::make_linear(const StageBuild& build, Parameter& parameter, Parameter* bias,
                          const WeightSpec& spec) {
  const Product& product = build.arithmetic.product_of(spec);
  std::vector<Parameter*> product_parameters;
  std::vector<const Weight*> weights;
  for (WeightSpec& beside : product.parameters(spec)) {
    product_parameters.push_back(
        product_parameters_.emplace_back(std::make_unique<Parameter>()).get());
    product_parameters.back()->weight =
        std::make_unique<Weight>(build.slots.memory, std::move(beside), f32_format());
    weights.push_back(product_parameters.back()->weight.get());
  }
  Context context{build.slots.ops, build.slots.scratch, build.slots.scalars};
  product.initialise(context, {*parameter.weight, weights});
  for (Parameter* beside : product_parameters) {
    beside->slot = build.learner.make_slot(build.slots, *beside->weight);
  }
  return {parameter, bias, product, std::move(product_parameters)};
}

template <class Body>
void Stage::for_all(const Body& body) const {
  const auto of_layer = [&](int64_t layer) {
    for (const auto& parameter : product_parameters_) {
      if (parameter->weight->spec().layer == layer) body(*parameter);
    }
  };
  // Products' parameters follow their block, so that the order is the same however a model is cut
  // into stages; those of the head come last.
  int64_t layer = -1;
  for (const auto& parameter : parameters_) {
    const int64_t next = parameter->weight->spec().layer;
    if (next != layer && layer >= 0) of_layer(layer);
    layer = next;
    body(*parameter);
  }
  if (layer >= 0) of_layer(layer);
  of_layer(-1);
}

bool Stage::learns_below(size_t block) const {
  if (!spec_.embedding) return true;  // the stage before may need it, and decides for itself
  if (embedding_->learns()) return true;
  return std::any_of(blocks_.begin(), blocks_.begin() + static_cast<ptrdiff_t>(block),
                     [](const Block& b) { return b.learns(); });
}

Tensor Stage::forward(const Context& of_step, const Batch& batch, const Tensor* input, Stash& stash,
                      KvCache* cache) const {
  Context context = of_step;
  context.rows = batch.tokens_before();
  const int64_t tokens = batch.tokens();
  const int64_t hidden = config_.hidden_size;
  const auto take = [&] { return stash.arena->tensor(DType::f32, {tokens, hidden}); };
  stash.inputs.clear();
  stash.blocks.clear();
  Tensor x = input != nullptr ? *input : take();
  if (spec_.embedding) {
    embedding_->weight->gather(context.ops, batch.ids, x);
    embedding_->slot->gathered(context, batch.positions, x);
  }
  Tensor spare = stash.keep ? Tensor() : take();
  for (const Block& block : blocks_) {
    const bool keep_all = stash.keep && !stash.recompute;
    const Arena::Frame frame(context.scratch);
    const BlockActivations saved =
        BlockActivations::take(config_, types_, tokens, keep_all ? *stash.arena : context.scratch);
    const Tensor out = stash.keep ? take() : spare;
    block.forward(context, {batch, x, saved, out, cache});
    if (stash.keep) {
      stash.inputs.push_back(x);
      if (keep_all) stash.blocks.push_back(saved);
    }
    spare = x;
    x = out;
    if (context.block_passed != nullptr) (*context.block_passed)(1);
  }
  return x;
}

void Stage::loss(Context& context, const Batch& batch, const Tensor& hidden,
                 const Tensor* d) const {
  if (d != nullptr) context.ops.zero(*d);
  if (batch.targets.size() > 0) loss_of_targets(context, batch, hidden, d);
  if (d == nullptr || !context.completes_gradients) return;
  final_norm_->complete(context);
  // A tied embedding gets its last gradient at the end of backward().
  if (!spec_.embedding || !config_.tie_word_embeddings) head_->complete(context);
}

void Stage::loss_of_targets(Context& context, const Batch& batch, const Tensor& hidden,
                            const Tensor* d) const {
  const Arena::Frame frame(context.scratch);
  const int64_t rows = batch.targets.size();
  // Only rows with a target pass the head, a chunk at a time. Random numbers are indexed by target.
  const Tensor losses = context.scratch.tensor(DType::f32, {rows});
  const int64_t chunk = std::min(rows, loss_chunk_rows(context.ops, config_.vocab_size,
                                                       d != nullptr && head_->forms_gradient()));
  // Every chunk multiplies by the head, twice with its gradient. Made ready once, it takes no more
  // memory than a chunk of logits.
  const Tensor head = chunk < rows || d != nullptr
                          ? head_->ready(context, chunk * config_.vocab_size * 4)
                          : Tensor();
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t end = std::min(rows, begin + chunk);
    loss_chunk(context, batch, begin, end, head, hidden, losses.columns(begin, end), d);
  }
  // The last chunk of another batch may be one row, for which products may need other memory.
  if (context.ops.plans_only()) {
    loss_chunk(context, batch, 0, 1, head, hidden, losses.columns(0, 1), d);
  }
  context.ops.launch(
      SumInto{losses.data<float>(),
              context.scalars == nullptr ? nullptr : &context.scalars->loss_sum, rows},
      1);
}

void Stage::loss_chunk(const Context& of_step, const Batch& batch, int64_t begin, int64_t end,
                       const Tensor& head, const Tensor& hidden, const Tensor& losses,
                       const Tensor* d) const {
  Context context = of_step;
  context.rows = batch.targets_before(begin);
  context.completes_gradients = false;  // there may be more chunks
  const Arena::Frame frame(context.scratch);
  const int64_t rows = end - begin;
  const int64_t width = config_.hidden_size;
  const DType activation = types_.linear;
  const auto take = [&](int64_t cols) { return context.scratch.tensor(DType::f32, {rows, cols}); };
  const Tensor target_rows = batch.target_rows.columns(begin, end);
  const Tensor x = take(width);
  const Tensor normed = context.scratch.tensor(activation, {rows, width});
  const Tensor rstd = context.scratch.tensor(DType::f32, {rows});
  context.ops.launch(
      GatherRows{hidden.data<float>(), target_rows.data<int32_t>(), x.data<float>(), width}, rows);
  final_norm_->forward(context, x, normed, rstd);
  const Tensor logits = take(config_.vocab_size);
  LinearInput input(normed);
  head_->forward(context, input, logits, head);
  const bool in_place = d == nullptr || activation == DType::f32;
  const Tensor dlogits =
      in_place ? logits : context.scratch.tensor(activation, {rows, config_.vocab_size});
  with_activation(dlogits.dtype(), [&]<class Activation>(Activation) {
    context.ops.launch(
        SoftmaxCrossEntropy<Activation>{
            logits.data<float>(), batch.targets.columns(begin, end).data<int32_t>(),
            losses.data<float>(), dlogits.data<Activation>(),
            d != nullptr ? context.scalars : nullptr, config_.vocab_size},
        rows);
  });
  if (d == nullptr) return;
  const Tensor dnormed = take(width);
  head_->backward(context, input, dlogits, &dnormed, Accumulate::no, head);
  const Tensor dx = take(width);
  context.ops.zero(dx);
  final_norm_->backward(context, x, rstd, dnormed, &dx);
  context.ops.launch(
      ScatterRows{dx.data<float>(), target_rows.data<int32_t>(), d->data<float>(), width}, rows);
}

void Stage::backward(const Context& of_step, const Batch& batch, const Tensor& d,
                     Stash& stash) const {
  Context context = of_step;
  context.rows = batch.tokens_before();
  for (size_t i = blocks_.size(); i-- > 0;) {
    if (!reaches(i)) return;
    const bool need_dx = learns_below(i);
    const Arena::Frame frame(context.scratch);
    BlockActivations saved;
    if (stash.recompute) {
      saved = BlockActivations::take(config_, types_, batch.tokens(), context.scratch);
      blocks_[i].recompute(context, {batch, stash.inputs[i], saved});
    } else {
      saved = stash.blocks[i];
    }
    blocks_[i].backward(context, {batch, stash.inputs[i], saved}, d, need_dx);
    if (context.block_passed != nullptr) (*context.block_passed)(1);
  }
  if (!spec_.embedding || !embedding_->learns()) return;
  Gradient g(context, gather_contributor(), *embedding_->weight);
  g.dy = d;
  g.indices = batch.ids;
  g.positions = batch.positions;
  embedding_->slot->backward(g, nullptr);
  if (context.completes_gradients) embedding_->slot->complete(context);
}

Tensor Stage::head_input(Context& context, const Tensor& hidden) const {
  const Tensor normed = context.scratch.tensor(types_.linear, {hidden.rows(), hidden.cols()});
  const Tensor rstd = context.scratch.tensor(DType::f32, {hidden.rows()});
  final_norm_->forward(context, hidden, normed, rstd);
  return normed;
}

void Stage::logits(Context& context, const Tensor& hidden, const Tensor& out) const {
  const Arena::Frame frame(context.scratch);
  LinearInput input(head_input(context, hidden));
  head_->forward(context, input, out);
}

void Stage::apply(Context& context, const WeightDecay& weight_decay) const {
  context.ops.in_batches([&] {
    for_all([&](const Parameter& parameter) {
      if (!parameter.learns()) return;
      const bool vector = parameter.weight->is_vector();
      parameter.slot->apply(context, vector ? weight_decay.vectors : weight_decay.matrices);
    });
  });
}

void Stage::visit(const StateVisitor& visitor) const {
  for_all([&](const Parameter& parameter) { parameter.slot->visit(visitor); });
}

void Stage::restored(Context& context) const {
  for_all([&](const Parameter& parameter) { parameter.slot->restored(context); });
}

void Stage::place_cache(KvCache& cache, Arena& arena, int64_t capacity) const {
  const int64_t kv = config_.num_key_value_heads * config_.head_dim;
  cache.keys.clear();
  cache.values.clear();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    cache.keys.push_back(arena.tensor(types_.attention, {capacity, kv}));
    cache.values.push_back(arena.tensor(types_.attention, {capacity, kv}));
  }
}

}  // namespace jackscrew
