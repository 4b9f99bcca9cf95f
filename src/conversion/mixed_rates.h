// Which of several ways of rounding each matrix gets, so that all together stay within a limit.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "conversion/quantise_checkpoint.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// The limit for the blocks' matrices together: bits per element in the files, with everything
// stored counted; or bytes in memory.
struct RateLimit {
  double bits = 0;
  std::optional<int64_t> memory_bytes = {};  // replaces `bits` if set
};

// The size of a matrix that is rounded in one of the ways.
struct RoundedSize {
  int64_t file_bytes = 0;
  int64_t memory_bytes = 0;  // as a training run holds it, frozen
};

class MixedRates {
 public:
  explicit MixedRates(const RateLimit& limit) : limit_(limit) {}

  // Call for every matrix, with its ways; there must be one.
  void add(const WeightSpec& weight, const std::vector<RoundedSize>& ways);
  // Throws Error(usage) for a rate that no ways reach, Error(does_not_fit) where none reach the
  // bytes.
  void check() const;

  bool contains(const WeightSpec& weight) const { return places_.contains(weight.name); }
  // The way of a matrix: the largest until choose().
  size_t of(const WeightSpec& weight) const { return matrices_[places_.at(weight.name)].chosen; }
  // An upper bound of the bytes of all matrices in files.
  int64_t most_bytes() const;
  // The bits of an element in files, on average.
  double bits() const;
  // The limit, for Rounder::settings().
  QuantisationSettings settings() const;
  // Takes the ways with the least total cost, given those of each matrix (Rounder::measure).
  void choose(const std::map<std::string, std::vector<double>>& costs);

 private:
  struct Matrix {
    std::string name;
    std::vector<RoundedSize> ways;
    size_t chosen = 0;
  };
  int64_t counted(const RoundedSize& way) const {
    return limit_.memory_bytes ? way.memory_bytes : way.file_bytes;
  }
  int64_t limit_bytes() const;

  RateLimit limit_;
  std::vector<Matrix> matrices_;
  std::map<std::string, size_t> places_;  // weight name -> index into matrices_
  double elements_ = 0.0;
  int64_t least_ = 0;  // of what is counted
};

}  // namespace jackscrew
