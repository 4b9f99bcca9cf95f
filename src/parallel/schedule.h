// The order in which a stage of a pipeline works: one forward, one backward (Narayanan et al. 2021,
// "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 2.2).
#pragma once

#include <cstdint>
#include <vector>

namespace jackscrew {

enum class Work { forward, backward };

struct Turn {
  Work work;
  int64_t micro_batch;  // of the step, from 0
  int64_t slot;         // which of the stage's flights holds it
};

// All throw Error(generic) for a stage that is none of `stages`, and for fewer than 0
// micro-batches.

// The most micro-batches that a stage has in flight; it needs as many slots.
int64_t flights_of(int stage, int stages, int64_t micro_batches);

// All turns of a stage in one step, in order: each micro-batch goes forward, later backward, both
// in ascending order. A stage first runs forward as many micro-batches as there are stages after
// it.
std::vector<Turn> one_forward_one_backward(int stage, int stages, int64_t micro_batches);

// The share of the time that stages of equal speed wait: (S - 1) / (M + S - 1), for S stages and M
// micro-batches.
double bubble_of(int stages, int64_t micro_batches);

}  // namespace jackscrew
