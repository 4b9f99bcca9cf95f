#include "session/session_use.h"

#include <algorithm>

#include "base/checked.h"

namespace jackscrew {

namespace {

// A shorter cache than this would leave many a short text of a small model without an answer.
constexpr int64_t kShortestCache = 128;  // tokens

// The tokens of a cache that takes what a step has as activations at least.
int64_t tokens_for_activations(const SessionUse& use, const ModelConfig& config) {
  // Numbers of f32 for each token. Backward needs the input of every block at least, where blocks
  // are recomputed. A cache has two rows for every block at most, beside the streams of a forward
  // pass.
  const int64_t layers = config.num_hidden_layers;
  const int64_t activations = (layers + 1) * config.hidden_size;
  const int64_t kv = config.num_key_value_heads * config.head_dim;
  const int64_t cached = 2 * layers * kv + 2 * config.hidden_size;
  return checked_mul(use.tokens, activations) / cached;
}

}  // namespace

int64_t answer_tokens(const SessionUse& use, const ModelConfig& config, int64_t virtual_tokens) {
  return std::min(use.max_positions - virtual_tokens,
                  std::max(tokens_for_activations(use, config) - virtual_tokens, kShortestCache));
}

bool answers_take_memory(const SessionUse& use, const ModelConfig& config, int64_t virtual_tokens) {
  return virtual_tokens + answer_tokens(use, config, virtual_tokens) >
         tokens_for_activations(use, config);
}

}  // namespace jackscrew
