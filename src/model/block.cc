#include "model/block.h"

#include <cmath>
#include <utility>

#include "kernels/rows/model.rows.h"
#include "quant/plain.h"

namespace jackscrew {

namespace {

void swiglu_forward(Ops& ops, const Tensor& gate, const Tensor& up, const Tensor& h) {
  with_activation(h.dtype(), [&]<class Activation>(Activation) {
    ops.launch(SwigluForward<Activation>{gate.data<Activation>(), up.data<Activation>(),
                                         h.data<Activation>(), h.cols()},
               h.rows());
  });
}

// dgate may be dh.
void swiglu_backward(Ops& ops, const Tensor& gate, const Tensor& up, const Tensor& dh,
                     const Tensor& dgate, const Tensor& dup) {
  with_activation(dh.dtype(), [&]<class Activation>(Activation) {
    ops.launch(SwigluBackward<Activation>{gate.data<Activation>(), up.data<Activation>(),
                                          dh.data<Activation>(), dgate.data<Activation>(),
                                          dup.data<Activation>(), dh.cols()},
               dh.rows());
  });
}

void put_into_cache(Ops& ops, const Tensor& k, const Tensor& v, const Tensor& positions,
                    const Tensor& keys, const Tensor& values) {
  with_activation(k.dtype(), [&]<class Activation>(Activation) {
    ops.launch(CacheKeysAndValues<Activation>{k.data<Activation>(), v.data<Activation>(),
                                              positions.data<int32_t>(), keys.data<Activation>(),
                                              values.data<Activation>(), k.cols()},
               k.rows());
  });
}

}  // namespace

ActivationTypes ActivationTypes::of(const Arithmetic& arithmetic, const Ops& ops) {
  const DType linear = arithmetic.activation_dtype();
  return {linear, ops.has_bf16_attention() ? linear : DType::f32, arithmetic.attention_operands()};
}

BlockActivations BlockActivations::take(const ModelConfig& config, const ActivationTypes& types,
                                        int64_t tokens, Arena& arena) {
  const int64_t query = config.num_attention_heads * config.head_dim;
  const int64_t kv = config.num_key_value_heads * config.head_dim;
  const auto f32 = [&](int64_t rows, int64_t cols) {
    return arena.tensor(DType::f32, {rows, cols});
  };
  BlockActivations out;
  out.norm1_rstd = arena.tensor(DType::f32, {tokens});
  out.q = arena.tensor(types.attention, {tokens, query});
  out.k = arena.tensor(types.attention, {tokens, kv});
  out.v = arena.tensor(types.attention, {tokens, kv});
  out.attention = arena.tensor(types.attention, {tokens, query});
  if (config.architecture->qk_norm) {
    out.q_rstd = arena.tensor(DType::f32, {tokens * config.num_attention_heads});
    out.k_rstd = arena.tensor(DType::f32, {tokens * config.num_key_value_heads});
  }
  out.lse = f32(config.num_attention_heads, tokens);
  out.residual_mid = f32(tokens, config.hidden_size);
  out.norm2_rstd = arena.tensor(DType::f32, {tokens});
  out.gate = arena.tensor(types.linear, {tokens, config.intermediate_size});
  out.up = arena.tensor(types.linear, {tokens, config.intermediate_size});
  return out;
}

Block::Block(const ModelConfig& config, int64_t layer, int64_t first, BlockLayers layers,
             const ActivationTypes& types, const RopeTable& rope)
    : config_(&config),
      types_(types),
      rope_(&rope),
      index_in_stage_(static_cast<size_t>(layer - first)),
      window_(config.window_of(layer)),
      rotates_(config.rotates(layer)),
      norm1_(layers.norm1),
      norm2_(layers.norm2),
      q_norm_(layers.q_norm),
      k_norm_(layers.k_norm),
      q_(std::move(layers.q)),
      k_(std::move(layers.k)),
      v_(std::move(layers.v)),
      o_(std::move(layers.o)),
      gate_(std::move(layers.gate)),
      up_(std::move(layers.up)),
      down_(std::move(layers.down)) {}

bool Block::learns() const {
  return norm1_.learns() || norm2_.learns() || q_.learns() || k_.learns() || v_.learns() ||
         o_.learns() || gate_.learns() || up_.learns() || down_.learns() ||
         (q_norm_ && (q_norm_->learns() || k_norm_->learns()));
}

AttentionShape Block::shape(const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k) const {
  return {cu_seqlens_q,
          cu_seqlens_k,
          cu_seqlens_q.size() - 1,
          config_->num_attention_heads,
          config_->num_key_value_heads,
          config_->head_dim,
          static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_->head_dim))),
          window_,
          types_.attention_operands};
}

Tensor Block::take_linear(Context& context, int64_t tokens, int64_t width) const {
  return context.scratch.tensor(types_.linear, {tokens, width});
}

void Block::rotate(Context& context, const Batch& batch, const Tensor& x, const Tensor& y,
                   float direction) const {
  if (!rotates_) {
    if (x.raw() != y.raw()) convert_to_bf16(context.ops, x, y);
    return;
  }
  with_activations(x, y, [&]<class Input, class Activation>(Input, Activation) {
    context.ops.launch(
        RotaryEmbedding<Input, Activation>{
            x.data<Input>(), y.data<Activation>(), batch.positions.data<int32_t>(),
            rope_->cosine.view().data<float>(), rope_->sine.view().data<float>(),
            x.cols() / config_->head_dim, config_->head_dim, x.row_stride(), direction},
        x.rows());
  });
}

Tensor Block::by_head(const Tensor& x) const {
  return {x.raw(), x.dtype(), {x.size() / config_->head_dim, config_->head_dim}};
}

Tensor Block::recompute_heads(Context& context, const Batch& batch, const std::optional<Norm>& norm,
                              const Tensor& kept, const Tensor& rstd) const {
  if (!norm) return kept;
  const Tensor heads = context.scratch.tensor(kept.dtype(), {kept.rows(), kept.cols()});
  norm->recompute(context, by_head(kept), rstd, by_head(heads));
  rotate(context, batch, heads, heads, 1.0f);
  return heads;
}

Tensor Block::backward_heads(Context& context, const Batch& batch, const std::optional<Norm>& norm,
                             const Tensor& kept, const Tensor& rstd, const Tensor& d) const {
  if (!norm) {
    const Tensor out = types_.linear == d.dtype() ? d : take_linear(context, d.rows(), d.cols());
    rotate(context, batch, d, out, -1.0f);
    return out;
  }
  rotate(context, batch, d, d, -1.0f);
  const Tensor projected = context.scratch.tensor(DType::f32, {d.rows(), d.cols()});
  const Tensor rows = by_head(projected);
  context.ops.zero(rows);
  norm->backward(context, by_head(kept), rstd, by_head(d), &rows);
  return projected;
}

void Block::attend(Context& context, const ForwardPass& pass) const {
  const BlockActivations& saved = pass.saved;
  const Batch& batch = pass.batch;
  const Arena::Frame frame(context.scratch);
  Tensor q = saved.q;
  Tensor k = saved.k;
  if (q_norm_) {
    q = context.scratch.tensor(types_.attention, {q.rows(), q.cols()});
    k = context.scratch.tensor(types_.attention, {k.rows(), k.cols()});
    q_norm_->forward(context, by_head(saved.q), by_head(q), saved.q_rstd);
    k_norm_->forward(context, by_head(saved.k), by_head(k), saved.k_rstd);
  }
  rotate(context, batch, q, q, 1.0f);
  rotate(context, batch, k, k, 1.0f);
  if (pass.cache == nullptr) {
    context.ops.attention_forward(shape(batch.cu_seqlens, batch.cu_seqlens), q, k, saved.v,
                                  saved.attention, saved.lse, context.scratch);
  } else {
    const Tensor keys = pass.cache->keys[index_in_stage_];
    const Tensor values = pass.cache->values[index_in_stage_];
    put_into_cache(context.ops, k, saved.v, batch.positions, keys, values);
    context.ops.attention_forward(shape(batch.cu_seqlens, pass.cache->cu_seqlens_k.view()), q, keys,
                                  values, saved.attention, saved.lse, context.scratch);
  }
}

Tensor Block::input_of(BlockPart part, Context& context, const ForwardPass& pass) const {
  const BlockActivations& saved = pass.saved;
  if (part == BlockPart::o) {
    attend(context, pass);
    return saved.attention;
  }
  const bool is_down = part == BlockPart::down;
  const Tensor input = take_linear(context, pass.batch.tokens(),
                                   is_down ? config_->intermediate_size : config_->hidden_size);
  if (part == BlockPart::qkv) norm1_.forward(context, pass.x, input, saved.norm1_rstd);
  if (part == BlockPart::gate_up) {
    norm2_.forward(context, saved.residual_mid, input, saved.norm2_rstd);
  }
  if (is_down) swiglu_forward(context.ops, saved.gate, saved.up, input);
  return input;
}

void Block::multiply(BlockPart part, Context& context, LinearInput& input,
                     const ForwardPass& pass) const {
  const BlockActivations& saved = pass.saved;
  switch (part) {
    case BlockPart::qkv:
      q_.forward(context, input, saved.q);
      k_.forward(context, input, saved.k);
      v_.forward(context, input, saved.v);
      return;
    case BlockPart::o:
      o_.forward_onto(context, input, pass.x, saved.residual_mid);
      return;
    case BlockPart::gate_up:
      gate_.forward(context, input, saved.gate);
      up_.forward(context, input, saved.up);
      return;
    case BlockPart::down:
      down_.forward_onto(context, input, saved.residual_mid, pass.out);
      return;
  }
}

std::vector<const Weight*> Block::weights_of(BlockPart part) const {
  switch (part) {
    case BlockPart::qkv:
      return {&q_.weight(), &k_.weight(), &v_.weight()};
    case BlockPart::o:
      return {&o_.weight()};
    case BlockPart::gate_up:
      return {&gate_.weight(), &up_.weight()};
    case BlockPart::down:
      return {&down_.weight()};
  }
  return {};
}

void Block::run(std::span<const BlockPart> parts, Context& context, const ForwardPass& pass) const {
  for (const BlockPart part : parts) {
    const Arena::Frame frame(context.scratch);
    LinearInput input(input_of(part, context, pass));
    multiply(part, context, input, pass);
  }
}

void Block::forward(Context& context, const ForwardPass& pass) const {
  run(kBlockParts, context, pass);
}

void Block::recompute(Context& context, const ForwardPass& pass) const {
  run(std::span(kBlockParts).first(kBlockParts.size() - 1), context, pass);
}

void Block::backward(Context& context, const ForwardPass& pass, const Tensor& d,
                     bool need_dx) const {
  backward_mlp(context, pass.saved, d);
  backward_attention(context, pass, d, need_dx);
}

void Block::backward_mlp(Context& context, const BlockActivations& saved, const Tensor& d) const {
  const Arena::Frame frame(context.scratch);
  const int64_t tokens = d.rows();
  const int64_t width = config_->intermediate_size;
  const Tensor dh = take_linear(context, tokens, width);
  const Tensor h = take_linear(context, tokens, width);
  swiglu_forward(context.ops, saved.gate, saved.up, h);
  {
    const Arena::Frame inner(context.scratch);
    LinearInput input(h);
    down_.backward(context, input, d, &dh, Accumulate::no);
  }
  const Tensor& dup = h;  // h is no longer needed
  swiglu_backward(context.ops, saved.gate, saved.up, dh, dh, dup);
  const Tensor normed = take_linear(context, tokens, config_->hidden_size);
  const Tensor dnormed = context.scratch.tensor(DType::f32, {tokens, config_->hidden_size});
  norm2_.recompute(context, saved.residual_mid, saved.norm2_rstd, normed);
  LinearInput input(normed);
  gate_.backward(context, input, dh, &dnormed, Accumulate::no);
  up_.backward(context, input, dup, &dnormed, Accumulate::yes);
  norm2_.backward(context, saved.residual_mid, saved.norm2_rstd, dnormed, &d);
}

void Block::backward_attention(Context& context, const ForwardPass& pass, const Tensor& d,
                               bool need_dx) const {
  const BlockActivations& saved = pass.saved;
  const Batch& batch = pass.batch;
  const Arena::Frame frame(context.scratch);
  const int64_t tokens = d.rows();
  const Tensor dq = context.scratch.tensor(DType::f32, {tokens, saved.q.cols()});
  const Tensor dk = context.scratch.tensor(DType::f32, {tokens, saved.k.cols()});
  const Tensor dv = context.scratch.tensor(DType::f32, {tokens, saved.v.cols()});
  {
    const Arena::Frame inner(context.scratch);
    const Tensor q = recompute_heads(context, batch, q_norm_, saved.q, saved.q_rstd);
    const Tensor k = recompute_heads(context, batch, k_norm_, saved.k, saved.k_rstd);
    const Tensor dattention = context.scratch.tensor(types_.attention, {tokens, saved.q.cols()});
    LinearInput attention(saved.attention);
    o_.backward(context, attention, d, &dattention, Accumulate::no);
    context.ops.attention_backward(shape(batch.cu_seqlens, batch.cu_seqlens), q, k, saved.v,
                                   saved.attention, saved.lse, dattention, dq, dk, dv,
                                   context.scratch);
  }
  const Tensor dq_projected = backward_heads(context, batch, q_norm_, saved.q, saved.q_rstd, dq);
  const Tensor dk_projected = backward_heads(context, batch, k_norm_, saved.k, saved.k_rstd, dk);
  const Tensor normed = take_linear(context, tokens, config_->hidden_size);
  norm1_.recompute(context, pass.x, saved.norm1_rstd, normed);
  LinearInput input(normed);
  const Tensor dnormed = context.scratch.tensor(DType::f32, {tokens, config_->hidden_size});
  const Tensor* dx = needs_input_gradient(need_dx) ? &dnormed : nullptr;
  q_.backward(context, input, dq_projected, dx, Accumulate::no);
  k_.backward(context, input, dk_projected, dx, Accumulate::yes);
  v_.backward(context, input, dv, dx, Accumulate::yes);
  if (dx != nullptr) {
    norm1_.backward(context, pass.x, saved.norm1_rstd, dnormed, need_dx ? &d : nullptr);
  }
}

}  // namespace jackscrew
