#include "session/flops.h"

#include <algorithm>

namespace jackscrew {

namespace {

// Whether backward forms the gradient of what a weight of the blocks multiplies.
bool forms_dx(const Stage& stage, const WeightSpec& weight) {
  const auto block = static_cast<size_t>(weight.layer - stage.spec().first_block);
  const bool reads_input =
      weight.module == "q_proj" || weight.module == "k_proj" || weight.module == "v_proj";
  if (!reads_input) return stage.reaches(block);
  return stage.reaches(block) &&
         stage.blocks()[block].needs_input_gradient(stage.learns_below(block));
}

}  // namespace

double training_flops(const Stage& stage, const StepBatch& batch) {
  const ModelConfig& config = stage.config();
  const auto tokens = static_cast<double>(batch.tokens);
  const auto targets = static_cast<double>(batch.targets);
  double total = 0.0;
  for (const auto& parameter : stage.parameters()) {
    const WeightSpec& weight = parameter->weight->spec();
    const bool tied = weight.kind == WeightKind::embedding && config.tie_word_embeddings;
    const bool head = weight.module == "lm_head" || (tied && stage.spec().head);
    if (weight.kind != WeightKind::linear && !head) continue;
    // y, dx where it is asked for, and as much of dW as the learner forms.
    const double dx = head || forms_dx(stage, weight) ? 1.0 : 0.0;
    const double products = 2.0 * (1.0 + dx + parameter->slot->gradient_products());
    total += products * static_cast<double>(weight.size()) * (head ? targets : tokens);
  }
  // Two products forward and, where backward comes, five over the causal half of the scores.
  const auto width = static_cast<double>(config.num_attention_heads * config.head_dim);
  double attention = 0.0;
  for (int64_t layer = stage.spec().first_block; layer < stage.spec().last_block; ++layer) {
    const auto block = static_cast<size_t>(layer - stage.spec().first_block);
    const double products = stage.reaches(block) ? 7.0 : 2.0;
    const auto window = static_cast<double>(config.window_of(layer));
    for (const MicroBatch& micro : batch.micro_batches) {
      for (size_t s = 0; s + 1 < micro.cu_seqlens.size(); ++s) {
        const auto length = static_cast<double>(micro.cu_seqlens[s + 1] - micro.cu_seqlens[s]);
        const double unseen = window > 0.0 ? std::max(0.0, length - window) : 0.0;
        attention += products * (length * length - unseen * unseen) / 2.0;
      }
    }
  }
  return total + 2.0 * attention * width;
}

}  // namespace jackscrew
