// Random batches for tests of the model.
#pragma once

#include <random>
#include <vector>

#include "data/batch.h"

namespace jackscrew {

// Sequences of these lengths, packed. The last token of a sequence has no target, and of the others
// about one in three has none, as a masked prompt has.
inline MicroBatch random_micro_batch(int64_t vocab_size, const std::vector<int32_t>& lengths,
                                     uint32_t seed) {
  std::mt19937 random(seed);
  MicroBatch out;
  out.cu_seqlens = {0};
  for (const int32_t length : lengths) {
    for (int32_t t = 0; t < length; ++t) {
      out.ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab_size)));
      out.positions.push_back(t);
      const bool has_target = t + 1 < length && random() % 3 != 0;
      const auto target = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab_size));
      out.targets.push_back(has_target ? target : -1);
      out.target_count += has_target ? 1 : 0;
    }
    out.cu_seqlens.push_back(static_cast<int32_t>(out.ids.size()));
  }
  return out;
}

inline StepBatch step_of(std::vector<MicroBatch> micro_batches) {
  StepBatch out;
  for (const MicroBatch& micro : micro_batches) {
    out.targets += micro.target_count;
    out.tokens += micro.tokens();
  }
  out.micro_batches = std::move(micro_batches);
  return out;
}

// Examples of 24 tokens of a golden model's vocabulary, others in every step.
inline StepBatch batch_of(int64_t step, int64_t micro_batches = 1) {
  StepBatch batch{{}, 0, 0, step * 24 * micro_batches};
  for (int64_t k = 0; k < micro_batches; ++k) {
    MicroBatch micro;
    Example example;
    for (int64_t i = 0; i < 24; ++i) {
      example.ids.push_back(static_cast<int32_t>((i * 7 + step * 13 + k * 5) % 50));
      example.train.push_back(1);
    }
    micro.append(example);
    batch.targets += micro.target_count;
    batch.tokens += micro.tokens();
    batch.micro_batches.push_back(std::move(micro));
  }
  return batch;
}

// All sequences of several micro-batches in one.
inline MicroBatch joined(const std::vector<MicroBatch>& parts) {
  MicroBatch out;
  out.cu_seqlens = {0};
  const auto append = [](std::vector<int32_t>& to, const std::vector<int32_t>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (const MicroBatch& part : parts) {
    const auto before = static_cast<int32_t>(out.ids.size());
    append(out.ids, part.ids);
    append(out.positions, part.positions);
    append(out.targets, part.targets);
    for (size_t s = 1; s < part.cu_seqlens.size(); ++s) {
      out.cu_seqlens.push_back(before + part.cu_seqlens[s]);
    }
    out.target_count += part.target_count;
  }
  return out;
}

// One micro-batch per sequence.
inline std::vector<MicroBatch> separated(const MicroBatch& micro) {
  std::vector<MicroBatch> out;
  for (size_t s = 0; s + 1 < micro.cu_seqlens.size(); ++s) {
    const auto begin = static_cast<ptrdiff_t>(micro.cu_seqlens[s]);
    const auto end = static_cast<ptrdiff_t>(micro.cu_seqlens[s + 1]);
    const auto part = [&](const std::vector<int32_t>& from) {
      return std::vector<int32_t>(from.begin() + begin, from.begin() + end);
    };
    MicroBatch one{part(micro.ids),
                   part(micro.positions),
                   part(micro.targets),
                   {0, static_cast<int32_t>(end - begin)},
                   0};
    for (const int32_t target : one.targets) one.target_count += target >= 0 ? 1 : 0;
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace jackscrew
