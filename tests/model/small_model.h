// A model that takes milliseconds, and random batches for it.
#pragma once

#include <random>
#include <vector>

#include "model/batch.h"
#include "model/config.h"

namespace jackscrew {

inline ModelConfig small_model(bool tied = false) {
  ModelConfig config;
  config.vocab_size = 61;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.tie_word_embeddings = tied;
  config.initializer_range = 0.2;
  config.validate();
  return config;
}

// A sequence of random tokens, all but the last with a target, that follows `before` tokens of the
// step. On a CPU, the device's memory is the host's.
class RandomBatch {
 public:
  RandomBatch(const ModelConfig& config, int32_t tokens, uint32_t seed, int64_t before = 0)
      : cu_seqlens_{0, tokens}, before_{before, before} {
    std::mt19937 random(seed);
    const auto any = [&] {
      return static_cast<int32_t>(random() % static_cast<uint32_t>(config.vocab_size));
    };
    for (int32_t t = 0; t < tokens; ++t) {
      ids_.push_back(any());
      positions_.push_back(t);
      if (t + 1 == tokens) continue;
      target_rows_.push_back(t);
      targets_.push_back(any());
    }
    batch_ = {view(ids_),         view(positions_), view(cu_seqlens_),
              view(target_rows_), view(targets_),   Tensor(before_, DType::i64, {2})};
  }
  RandomBatch(const RandomBatch&) = delete;
  RandomBatch& operator=(const RandomBatch&) = delete;
  operator const Batch&() const { return batch_; }
  int64_t tokens() const { return batch_.tokens(); }
  int64_t targets() const { return batch_.targets.size(); }

 private:
  static Tensor view(std::vector<int32_t>& values) {
    return {values.data(), DType::i32, {static_cast<int64_t>(values.size())}};
  }
  std::vector<int32_t> ids_, positions_, cu_seqlens_, target_rows_, targets_;
  int64_t before_[2];
  Batch batch_;
};

}  // namespace jackscrew
