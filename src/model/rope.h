// Rotary position embedding tables (Su et al. 2021), with the scalings of ModelConfig.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "model/config.h"
#include "tensor/memory.h"

namespace jackscrew {

// The angle per position of each pair of a head, [head_dim / 2], in float as Hugging Face keeps
// them: models were trained with those roundings. With dynamic scaling they are those for sequences
// of max_positions tokens or, if that is more, max_position_embeddings.
std::vector<float> rope_frequencies(const ModelConfig& config, int64_t max_positions);

// How much Llama 3.1's rule keeps of a frequency, with the original context C: none of wavelengths
// above C / low_freq_factor, which are stretched by `factor`, all of those below C /
// high_freq_factor, and of those between a share that grows linearly with the frequency.
double llama3_kept_share(double frequency, const RopeScaling& scaling);

// cos and sin of position * frequency for positions [0, max_positions), times the scaling's
// attention_factor. The last `later_positions` of them are those of tokens that are added to a
// sequence one by one. With dynamic scaling each of these has the frequencies for the sequence that
// ends with it, as in transformers; the positions before, those for their own sequence.
struct RopeTable {
  OwnedTensor cosine;  // f32 [max_positions, head_dim / 2]
  OwnedTensor sine;    // f32 [max_positions, head_dim / 2]
};
RopeTable make_rope_table(const ModelConfig& config, int64_t max_positions, int64_t later_positions,
                          Memory& memory, Ops& ops);

}  // namespace jackscrew
