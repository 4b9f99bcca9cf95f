// Stage: a range of blocks of a Llama-like model, with or without the embedding and the head. The
// whole model is one stage; a pipeline is several. A stage holds parameters only: what belongs to a
// micro-batch in flight is in the Stash that the caller passes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "model/block.h"
#include "model/weights.h"

namespace jackscrew {

// What forward keeps for the backward of one micro-batch.
struct Stash {
  Arena* arena = nullptr;
  bool keep = true;                      // false: evaluation; nothing outlives the block that runs
  bool recompute = false;                // keep only the blocks' inputs
  std::vector<Tensor> inputs;            // per block, f32 [tokens, hidden]
  std::vector<BlockActivations> blocks;  // per block, unless recomputed
};

// How to make the weights of a stage.
struct StageBuild {
  LearnerContext slots;  // what slots are made with; the stage's weights come from the same memory
  Learner& learner;
  const Arithmetic& arithmetic;  // outlives the stage
  // The storage format of a weight.
  std::function<FormatPointer(const WeightSpec&)> format;
  // Fills a new weight, before its slot is made: from a file, at random, or (planning) not at all.
  std::function<void(Weight&)> fill;
  int64_t max_positions = 0;    // the most positions of any sequence in this run
  int64_t later_positions = 0;  // see RopeTable
  // Returns the bytes of a weight of that format if it is to be read in its file's map: such a
  // weight takes no memory and is not filled. An empty function: no weight is mapped.
  std::function<std::optional<Tensor>(const WeightSpec&, const Format&)> mapped = {};
};

class Stage {
 public:
  Stage(const ModelConfig& config, const StageSpec& spec, const StageBuild& build);
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  const ModelConfig& config() const { return config_; }
  // Every parameter of the model once, in the order of the Hugging Face model, without the
  // parameters that products keep.
  const std::vector<std::unique_ptr<Parameter>>& parameters() const { return parameters_; }
  const StageSpec& spec() const { return spec_; }
  // The parts of the stage, for callers that run them one by one.
  const std::vector<Block>& blocks() const { return blocks_; }
  const ActivationTypes& types() const { return types_; }

  // Runs the blocks and returns the residual stream after them, f32 [tokens, hidden], in stash
  // memory. `input` is the previous stage's output, null for a stage with the embedding. It must
  // live as long as the stash, and is overwritten where nothing is kept for backward.
  Tensor forward(const Context& context, const Batch& batch, const Tensor* input, Stash& stash,
                 KvCache* cache = nullptr) const;

  // Adds the negative log-likelihoods of the batch's targets to scalars->loss_sum. With `d` also
  // runs the head backward: d [tokens, hidden] becomes the gradient of `hidden`.
  void loss(Context& context, const Batch& batch, const Tensor& hidden, const Tensor* d) const;

  // Turns d, f32 [tokens, hidden], from the gradient of the output into that of the input. Where
  // nothing below learns, it may stop early and leave d unspecified.
  void backward(const Context& context, const Batch& batch, const Tensor& d, Stash& stash) const;

  // Whether something below a block of the stage learns, so that its gradient is passed on.
  bool learns_below(size_t block) const;
  // Whether backward() comes as far as that block.
  bool reaches(size_t block) const { return learns_below(block) || blocks_[block].learns(); }

  // Computes the head's input from rows of the residual stream, f32 [rows, hidden]. It lies in
  // context.scratch and is of type ActivationTypes::linear.
  Tensor head_input(Context& context, const Tensor& hidden) const;
  // Writes the logits of rows of the residual stream, f32 [rows, hidden], to out, f32 [rows,
  // vocab].
  void logits(Context& context, const Tensor& hidden, const Tensor& out) const;

  // Updates every parameter that learns.
  void apply(Context& context, const WeightDecay& weight_decay) const;
  // Visits everything that learners keep, for the products' parameters too.
  void visit(const StateVisitor& visitor) const;
  // Call after states were overwritten from outside.
  void restored(Context& context) const;

  // Takes the keys and values of a cache for `capacity` tokens from `arena`, not initialised.
  void place_cache(KvCache& cache, Arena& arena, int64_t capacity) const;

 private:
  // Makes the linear layer of a weight. `spec` is the weight as its product knows it: head_of() for
  // a tied head.
  Linear make_linear(const StageBuild& build, Parameter& parameter, Parameter* bias,
                     const WeightSpec& spec);
  // Runs body(parameter) on all parameters in order; products' parameters follow their block.
  template <class Body>
  void for_all(const Body& body) const;
  // loss() of a batch that has targets.
  void loss_of_targets(Context& context, const Batch& batch, const Tensor& hidden,
                       const Tensor* d) const;
  // loss() of targets [begin, end) of the batch; writes their losses. `head` is the head's weight
  // made ready, or empty.
  void loss_chunk(const Context& context, const Batch& batch, int64_t begin, int64_t end,
                  const Tensor& head, const Tensor& hidden, const Tensor& losses,
                  const Tensor* d) const;

  ModelConfig config_;
  StageSpec spec_;
  ActivationTypes types_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::unique_ptr<Parameter>> product_parameters_;  // what products keep beside weights
  RopeTable rope_;
  Parameter* embedding_ = nullptr;
  std::vector<Block> blocks_;
  std::unique_ptr<Norm> final_norm_;
  std::unique_ptr<Linear> head_;
};

// Everything that a learner may be asked to train: the model's weights, and the parameters that
// products keep beside them.
std::vector<WeightSpec> learnable_of(const ModelConfig& config, const StageSpec& stage,
                                     const Arithmetic& arithmetic);

// The weights that arithmetic.product() multiplies, a tied embedding as the head: those of the
// layers that neither product_exclude nor the product itself leaves to another product.
std::vector<WeightSpec> multiplied_by_product(const ModelConfig& config, const StageSpec& stage,
                                              const Arithmetic& arithmetic);

}  // namespace jackscrew
