// Batches: examples laid end to end, in an order that depends only on seed and epoch.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "data/dataset.h"

namespace jackscrew {

// The tokens that have a target: their places in the micro-batch, and the targets.
struct TargetRows {
  std::vector<int32_t> rows, targets;  // [target_count]
};

// The flattened tokens of one or more sequences. Sequences never see each other: attention is
// bounded by cu_seqlens, and positions restart at 0.
struct MicroBatch {
  std::vector<int32_t> ids;        // [tokens]
  std::vector<int32_t> positions;  // [tokens], within the sequence
  std::vector<int32_t>
      targets;  // [tokens]: the sequence's next token where that is trained, else -1
  std::vector<int32_t> cu_seqlens;  // [sequences + 1]: where each sequence begins, then the total
  int64_t target_count = 0;         // targets that are not -1

  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  TargetRows target_rows() const;
  // Before the first sequence: takes the memory of so many, with so many tokens in all.
  void reserve(int64_t tokens, int64_t sequences);
  // Appends a sequence, preceded by `virtual_tokens` tokens of id 0 that are never targets. Throws
  // Error(data) when the example is empty, Error(generic) beyond 2^31 tokens.
  void append(const Example& example, int64_t virtual_tokens = 0);
};

// The input of one optimizer step.
struct StepBatch {
  std::vector<MicroBatch> micro_batches;
  int64_t targets = 0;
  int64_t tokens = 0;
  int64_t first_token = 0;  // tokens in all steps before: the index of the first one, for RNG
};

// Rows of examples, one row after another. There are as many indices as examples, which may be
// millions: 32 bits each.
struct Rows {
  std::vector<uint32_t> examples;
  std::vector<uint32_t> begins = {0};  // [rows + 1]: where each begins in `examples`, then the end

  int64_t size() const { return std::ssize(begins) - 1; }
  // The examples of rows [begin, end).
  std::span<const uint32_t> rows(int64_t begin, int64_t end) const;
  std::span<const uint32_t> row(int64_t index) const { return rows(index, index + 1); }
  void append(std::span<const uint32_t> row);
};

struct BatchOptions {
  int64_t sequence_len = 1024;              // tokens in a row at most
  int64_t micro_batch_size = 1;             // rows in a micro batch
  int64_t gradient_accumulation_steps = 1;  // micro batches in a step
  bool packing = true;                      // several short examples may share a row
  uint64_t seed = 42;
  int64_t virtual_tokens = 0;  // at the start of every sequence, beside the example's tokens
};

// Throws Error(usage) where micro-batches of these sizes, both at least 1, would have more than
// `most` tokens.
void require_micro_batch(int64_t micro_batch_size, int64_t sequence_len, int64_t most);

// Deals a dataset's examples into steps, each example exactly once per epoch. The last step of an
// epoch gets the remainder and may be smaller. Thread-safe.
class BatchSampler {
 public:
  // `dataset` must outlive the sampler. Throws Error(usage) for options below 1 and for
  // micro-batches of more tokens than 32 bits count, Error(data) when the dataset is empty or a
  // sequence is longer than sequence_len, Error(does_not_fit) where the memory limit leaves too
  // little to plan an epoch. `root`: see memory_limit().
  BatchSampler(const Dataset& dataset, const BatchOptions& options, const fs::path& root = "/");

  // Step `index` >= 0, counted over all epochs: a pure function of the dataset, the options and the
  // index. Throws Error(usage) for a negative index.
  StepBatch step(int64_t index) const;

  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  int64_t rows_per_epoch() const { return rows_per_epoch_; }
  // The share of rows x sequence_len that holds tokens, in (0, 1].
  double fill_rate() const;
  // The most bytes of a step.
  int64_t step_bytes() const;
  // The most bytes that step() takes for a moment where an epoch begins, beside what it holds
  // anyway.
  int64_t planning_bytes() const;

 private:
  // One epoch's rows, each a list of examples, and the tokens before each step.
  struct Epoch {
    int64_t number = 0;
    Rows rows;
    std::vector<int64_t> tokens_before;  // [steps + 1]
  };
  std::shared_ptr<const Epoch> epoch(int64_t number) const;
  Epoch plan(int64_t number) const;
  // A bound of rows_per_epoch() that needs no planning.
  int64_t most_rows() const;
  // The rows of an epoch, packed or of one example each, before they are shuffled.
  Rows rows_in_order(int64_t number) const;
  int64_t length(int64_t example) const {
    return options_.virtual_tokens + dataset_->length(example);
  }

  const Dataset* dataset_;
  BatchOptions options_;
  int64_t rows_per_step_ = 0;
  int64_t rows_per_epoch_ = 0;
  int64_t steps_per_epoch_ = 0;
  int64_t tokens_per_epoch_ = 0;
  int64_t longest_ = 0;  // tokens of an example
  // The most recently used epoch, a cache: planning it again gives the same. Null while none is.
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Epoch> cached_;
};

// Packs examples into rows of `capacity` by best-fit decreasing: the longest first, each into the
// fullest row that still has room. Examples of equal length are taken in the given order, and the
// number of rows depends on the lengths alone. Returns indices into `lengths`. Throws Error(data)
// when a length exceeds the capacity. Takes at most 12 bytes an example and 8 a row, the result and
// both arguments included, which are freed.
Rows pack_best_fit(std::vector<int32_t> lengths, std::vector<uint32_t> order, int64_t capacity);

// All of a dataset in order, for evaluation, a few micro batches at a time.
class EvaluationBatches {
 public:
  // Micro batches of at most `max_tokens` tokens, or of one example where that alone is longer.
  // `dataset` must outlive this. Throws Error(usage) when max_tokens < 1.
  EvaluationBatches(const Dataset& dataset, int64_t max_tokens, int64_t virtual_tokens = 0);

  // At the end, returns a step without micro batches.
  StepBatch next();
  // The most bytes of a step.
  int64_t step_bytes() const;

 private:
  const Dataset* dataset_;
  int64_t max_tokens_;
  int64_t virtual_tokens_;
  int64_t example_ = 0;  // the next
};

}  // namespace jackscrew
