// One transformer block: attention and MLP with their hand-written backward.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "model/batch.h"
#include "model/config.h"
#include "model/layers.h"
#include "model/rope.h"
#include "products/arithmetic.h"

namespace jackscrew {

// The types, f32 or bf16, of activations that products round anyway.
struct ActivationTypes {
  DType linear;              // between two products
  DType attention;           // of what attention reads and writes
  DType attention_operands;  // to which attention's own products may round these

  // The types that the arithmetic asks for; attention gets bf16 only where the device has it.
  static ActivationTypes of(const Arithmetic& arithmetic, const Ops& ops);
};

// What a block's backward needs from its forward, besides the block's input. f32 unless stated
// otherwise.
struct BlockActivations {
  Tensor norm1_rstd;  // [tokens]
  // Of type ActivationTypes::attention:
  Tensor q;             // [tokens, heads * head_dim], rotated; if there is a q_norm, as projected
  Tensor k, v;          // [tokens, kv_heads * head_dim], k likewise
  Tensor attention;     // [tokens, heads * head_dim]
  Tensor q_rstd;        // [tokens * heads], where q has a norm
  Tensor k_rstd;        // [tokens * kv_heads]
  Tensor lse;           // [heads, tokens], the log-sum-exp of the attention scores
  Tensor residual_mid;  // [tokens, hidden], the residual stream between attention and MLP
  Tensor norm2_rstd;    // [tokens]
  Tensor gate, up;      // [tokens, intermediate], of type ActivationTypes::linear

  static BlockActivations take(const ModelConfig& config, const ActivationTypes& types,
                               int64_t tokens, Arena& arena);
};

// Keys and values of the tokens so far of one sequence, for generation. What a block does with them
// depends on nothing but what is on the device, so that the work of a token can be repeated.
struct KvCache {
  std::vector<Tensor> keys, values;  // per block [capacity, kv_heads * head_dim]
  OwnedTensor cu_seqlens_k;          // i32 [2], with the tokens of the batch
  int64_t length = 0;                // tokens held
};

// What the forward pass of a block reads and writes. With a cache, the batch is one sequence that
// follows the tokens in the cache, where its positions begin; its keys and values are added there.
// The length and cu_seqlens_k are the caller's to set.
struct ForwardPass {
  const Batch& batch;
  Tensor x;  // f32 [tokens, hidden]
  const BlockActivations& saved;
  Tensor out = {};  // f32 [tokens, hidden]
  KvCache* cache = nullptr;
};

// The layers of a block; their parameters belong to the stage.
struct BlockLayers {
  Norm norm1;
  Linear q, k, v;
  std::optional<Norm> q_norm, k_norm;  // over each head
  Linear o;
  Norm norm2;
  Linear gate, up, down;
};

// The linear layers of a block in the order of the forward pass: those of a part read one input.
enum class BlockPart : uint8_t { qkv, o, gate_up, down };
inline constexpr std::array kBlockParts = {BlockPart::qkv, BlockPart::o, BlockPart::gate_up,
                                           BlockPart::down};

class Block {
 public:
  // Block `layer` of the model, in a stage that begins with block `first`.
  Block(const ModelConfig& config, int64_t layer, int64_t first, BlockLayers layers,
        const ActivationTypes& types, const RopeTable& rope);

  bool learns() const;
  // Whether backward() forms the gradient of what its q, k and v read.
  bool needs_input_gradient(bool need_dx) const { return need_dx || norm1_.learns(); }

  // out = block(x); fills `saved`.
  void forward(Context& context, const ForwardPass& pass) const;
  // forward() in steps: for each of kBlockParts, what its linear layers read, in context.scratch or
  // in `saved`, and then their outputs, in `saved` or, of down, in `out`. A part needs of `saved`
  // what the parts before it have left there.
  Tensor input_of(BlockPart part, Context& context, const ForwardPass& pass) const;
  void multiply(BlockPart part, Context& context, LinearInput& input,
                const ForwardPass& pass) const;
  std::vector<const Weight*> weights_of(BlockPart part) const;
  // Fills `saved` again from x, with the same bits; there is no cache and no `out`.
  void recompute(Context& context, const ForwardPass& pass) const;
  // d, f32 [tokens, hidden], comes in as the gradient of `out` and becomes the gradient of x; if
  // nothing below learns (`need_dx` false), it becomes unspecified. Reads x and `saved`.
  void backward(Context& context, const ForwardPass& pass, const Tensor& d, bool need_dx) const;

 private:
  // Runs the forward pass of some parts.
  void run(std::span<const BlockPart> parts, Context& context, const ForwardPass& pass) const;
  // Queries and keys are normed and rotated, attention runs; fills saved.attention.
  void attend(Context& context, const ForwardPass& pass) const;
  void backward_mlp(Context& context, const BlockActivations& saved, const Tensor& d) const;
  void backward_attention(Context& context, const ForwardPass& pass, const Tensor& d,
                          bool need_dx) const;
  AttentionShape shape(const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k) const;
  // A tensor [tokens, width] of type ActivationTypes::linear, in context.scratch.
  Tensor take_linear(Context& context, int64_t tokens, int64_t width) const;
  // y may be x. Where the block does not rotate, y is x.
  void rotate(Context& context, const Batch& batch, const Tensor& x, const Tensor& y,
              float direction) const;
  // x [tokens, heads * head_dim] as [tokens * heads, head_dim].
  Tensor by_head(const Tensor& x) const;
  // Recomputes queries or keys as attention reads them, from what was kept.
  Tensor recompute_heads(Context& context, const Batch& batch, const std::optional<Norm>& norm,
                         const Tensor& kept, const Tensor& rstd) const;
  // The gradient of the heads as projected, from d, that of the heads as attention reads them.
  // Overwrites d.
  Tensor backward_heads(Context& context, const Batch& batch, const std::optional<Norm>& norm,
                        const Tensor& kept, const Tensor& rstd, const Tensor& d) const;

  const ModelConfig* config_;
  ActivationTypes types_;
  const RopeTable* rope_;
  size_t index_in_stage_;
  int64_t window_;
  bool rotates_;
  Norm norm1_, norm2_;
  std::optional<Norm> q_norm_, k_norm_;
  Linear q_, k_, v_, o_, gate_, up_, down_;
};

}  // namespace jackscrew
