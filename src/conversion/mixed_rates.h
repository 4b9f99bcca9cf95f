// Which of several ways of rounding each matrix gets, so that all together stay within a limit.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "conversion/quantise_checkpoint.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// The bytes in memory that the blocks' matrices of a pipeline's stage may take together.
struct StageLimit {
  int64_t end_block = 0;  // after the stage's last; it begins where the stage before ends
  int64_t memory_bytes = 0;
};

// The limit for the blocks' matrices: bits per element in the files, of all together and with
// everything stored counted; or bytes in memory, stage by stage.
struct RateLimit {
  double bits = 0;
  std::vector<StageLimit> stages = {};  // replace `bits` if there are any
};

// The size of a matrix that is rounded in one of the ways.
struct RoundedSize {
  int64_t file_bytes = 0;
  int64_t memory_bytes = 0;  // as a training run holds it, frozen
};

class MixedRates {
 public:
  explicit MixedRates(const RateLimit& limit)
      : limit_(limit), groups_(std::max<size_t>(1, limit.stages.size())) {}

  // Call for every matrix, with its ways; there must be one.
  void add(const WeightSpec& weight, const std::vector<RoundedSize>& ways);
  // Throws Error(usage) for a rate that no ways reach, Error(does_not_fit) where none reach the
  // bytes.
  void check() const;

  // The way of a matrix: the largest until choose().
  size_t of(const WeightSpec& weight) const;
  // An upper bound of the bytes of all matrices in files.
  int64_t most_bytes() const;
  // The bits of an element in files, on average.
  double bits() const;
  // The limit, for Rounder::settings().
  QuantisationSettings settings() const;
  // Takes the ways with the least total cost, given those of each matrix that has several
  // (Rounder::measure). `check` is cheapest_choice()'s.
  void choose(const std::map<std::string, std::vector<double>>& costs,
              const std::function<void()>& check);

 private:
  struct Matrix {
    std::string name;
    std::vector<RoundedSize> ways;
    size_t chosen = 0;
  };
  // Matrices that share a limit.
  struct Group {
    std::vector<Matrix> matrices;
    int64_t least = 0;  // of what is counted
  };
  struct Place {
    size_t group, index;
  };

  bool counts_memory() const { return !limit_.stages.empty(); }
  int64_t counted(const RoundedSize& way) const {
    return counts_memory() ? way.memory_bytes : way.file_bytes;
  }
  size_t group_of(const WeightSpec& weight) const;
  int64_t limit_bytes(size_t group) const;
  int64_t most_bytes(size_t group) const;

  RateLimit limit_;
  std::vector<Group> groups_;            // [stages], or one
  std::map<std::string, Place> places_;  // by weight name
  double elements_ = 0.0;
};

}  // namespace jackscrew
