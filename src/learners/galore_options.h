// The options of GaLore, and what they mean for each weight of the model.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/module_patterns.h"
#include "base/options.h"
#include "quant/format.h"
#include "quant/weight_spec.h"

namespace jackscrew {

std::span<const OptionSpec> galore_options();

// How the subspace of a refresh is found.
enum class SubspaceKind {
  power,   // a power iteration over the steps of a window, from the subspace before
  random,  // at random
  svd      // the singular vectors of the window's gradient, formed as a whole
};

// How the optimizer's moments are carried over to a new basis.
enum class SubspaceBasis {
  principal,  // the basis is the principal directions; moments are rotated into it
  aligned,    // the basis is turned towards the old one; moments stay
  original    // the basis is the principal directions; moments stay, as in the papers' code
};

// The rank of subspaces, as given.
struct GaloreRank {
  std::string text;
  double value = 0.0;
  bool is_percentage = false;  // of the smaller side of each matrix
};

struct GaloreSettings {
  // Throws Error(usage) for values that contradict each other.
  explicit GaloreSettings(const OptionSet& options);

  // Checks the options against all weights of the model. Throws Error(usage) where it has none of
  // the targets, or the rank or the weight decay does not fit one of them.
  void check(std::span<const WeightSpec> weights) const;

  bool targets(const WeightSpec& weight) const;
  // The rank of the subspace of a targeted weight.
  int64_t rank_of(const WeightSpec& weight) const;
  // Whether its basis is of inputs (columns of dW: R = dW P) rather than of outputs (R = dWᵀ P).
  bool of_inputs(const WeightSpec& weight) const;
  // The optimizer's learning rate for R, as a multiple of the run's: galore_scale is in it where
  // the learning rate is given, and has no part in it where galore_learning_rate is auto.
  double step_scale(const WeightSpec& weight) const;
  // The learning rate at which full training would move the weight's elements as far, as a multiple
  // of the run's.
  double element_scale(const WeightSpec& weight) const;
  // Steps between two refreshes, in a run of `total_steps`.
  int64_t gap_of(int64_t total_steps) const;
  // Whether refreshes are made of gradients, which are summed in a window before each.
  bool has_windows() const { return subspace != SubspaceKind::random; }
  // Its steps. Subspaces at random come first as long after the beginning as others do.
  int64_t window_of(int64_t refresh_gap) const;
  // The longest gap that a lazy schedule grows to.
  int64_t longest_gap_of(int64_t refresh_gap) const;

  SubspaceKind subspace;
  SubspaceBasis basis;
  bool stagger;
  bool stochastic;  // rounding of weights
  // How far on the way from chance (0) to equality (1) two overlaps in a row must lie for the gap
  // to double; 0: it never does.
  double lazy_overlap;
  const Format* projection;  // how bases are kept
  GaloreRank rank;
  int64_t max_steps;     // of the run; 0: not known yet
  double learning_rate;  // of the run

 private:
  double root_of_share(const WeightSpec& weight) const;

  double weight_decay_;
  std::string side_;
  double scale_;
  std::optional<double> matrices_rate_;  // galore_learning_rate
  std::optional<int64_t> gap_, window_, longest_gap_;
  ModuleTargets targets_;
};

}  // namespace jackscrew
