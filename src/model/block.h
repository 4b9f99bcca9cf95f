// One transformer block: attention and MLP with their hand-written backward.
#pragma once

#include <vector>

#include "model/batch.h"
#include "model/config.h"
#include "model/parameter.h"
#include "model/rope.h"

namespace jackscrew {

// What a block's backward needs of its forward, beside the block's input. f32 unless said
// otherwise.
struct BlockActivations {
  Tensor norm1_rstd;  // [tokens]
  Tensor q;           // [tokens, heads * head_dim], rotated
  Tensor k, v;        // [tokens, kv_heads * head_dim], k rotated
  Tensor attention;   // [tokens, heads * head_dim]
  Tensor lse;         // [heads, tokens]
  Tensor middle;      // [tokens, hidden], the residual stream between attention and MLP
  Tensor norm2_rstd;  // [tokens]
  Tensor gate, up;    // [tokens, intermediate], in the product's kept_dtype()

  static BlockActivations take(const ModelConfig& config, const Product& product, int64_t tokens,
                               Arena& arena);
};

// Keys and values of the tokens so far, for generation: one sequence.
struct KvCache {
  std::vector<OwnedTensor> keys, values;   // per block f32 [capacity, kv_heads * head_dim]
  OwnedTensor cu_seqlens_q, cu_seqlens_k;  // i32 [2]
  int64_t length = 0;                      // tokens held
};

// The parameters of a block; they belong to the stage.
struct BlockParameters {
  Parameter *norm1, *q, *k, *v, *o, *norm2, *gate, *up, *down;
};

class Block {
 public:
  Block(const ModelConfig& config, int64_t layer, const BlockParameters& parameters,
        const Product& product, const RopeTable& rope);

  bool learns() const;

  // out = block(x), both f32 [tokens, hidden]; fills `saved`. With a cache the batch is one
  // sequence that follows the tokens the cache holds; its keys and values are added, its length is
  // not.
  void forward(Context& context, const Batch& batch, const Tensor& x, const BlockActivations& saved,
               const Tensor& out, KvCache* cache) const;
  // Fills `saved` again from x, with the same bits.
  void recompute(Context& context, const Batch& batch, const Tensor& x,
                 const BlockActivations& saved) const;
  // d enters as the gradient of the output and leaves as the gradient of x, unless nothing below
  // learns (`need_dx` false), when it leaves unspecified.
  void backward(Context& context, const Batch& batch, const Tensor& x,
                const BlockActivations& saved, const Tensor& d, bool need_dx) const;

 private:
  void attend(Context& context, const Batch& batch, const Tensor& x, const BlockActivations& saved,
              KvCache* cache) const;
  void backward_mlp(Context& context, const Batch& batch, const BlockActivations& saved,
                    const Tensor& d) const;
  void backward_attention(Context& context, const Batch& batch, const Tensor& x,
                          const BlockActivations& saved, const Tensor& d, bool need_dx) const;
  AttentionShape shape(const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k) const;
  void rotate(Context& context, const Batch& batch, const Tensor& x, int64_t heads,
              float direction) const;

  const ModelConfig* config_;
  const Product* product_;
  const RopeTable* rope_;
  size_t layer_;
  Norm norm1_, norm2_;
  Linear q_, k_, v_, o_, gate_, up_, down_;
};

}  // namespace jackscrew
