// When the subspaces of GaLore's matrices are refreshed: each matrix once in every gap, with
// stagger_refreshes one after another.
#pragma once

#include <map>
#include <span>
#include <string>

#include "learners/galore_options.h"

namespace jackscrew {

// The refresh schedule of one matrix' subspace, in the layout that checkpoints keep.
struct RefreshSchedule {
  int64_t gap = 0;
  int64_t next = 0;      // the next refresh is before this step
  int64_t done = 0;      // refreshes so far
  int64_t overlaps = 0;  // consecutive refreshes whose overlap reached lazy_overlap
  int64_t open = 0;      // 1: the matrix is in a window
};

class RefreshTurns {
 public:
  explicit RefreshTurns(const GaloreSettings& settings) : settings_(settings) {}

  // Gives all matrices of the model that have subspaces, then the steps of the run.
  void plan(std::span<const WeightSpec> matrices);
  void begin_run(int64_t total_steps);

  // Steps between two refreshes, unless they grew, and steps of a window.
  int64_t gap() const { return gap_; }
  int64_t window() const { return settings_.window_of(gap_); }

  // The schedule with which a matrix begins a run.
  RefreshSchedule first(const std::string& matrix) const;
  // Whether a schedule is one that these settings make.
  bool is_own(const std::string& matrix, const RefreshSchedule& schedule) const;
  // The schedule from `step` on in a run that goes on with another gap or window, or other turns:
  // the matrix is refreshed next after the first whole window that its turn allows.
  RefreshSchedule fitted(const std::string& matrix, int64_t refreshes_done, int64_t step) const;
  // Sets the next refresh after one before `step` with this overlap, where `chance` is that of two
  // random subspaces.
  void set_next(RefreshSchedule& schedule, int64_t step, double overlap, double chance) const;

  // The most bytes that windows take at once, given those of each matrix that is here. Where the
  // number of steps is not known yet, it is of whatever gap they lead to.
  int64_t worst_windows(const std::map<std::string, int64_t>& window_bytes) const;

 private:
  struct Turn {
    int64_t place, bytes;  // of a window
  };
  // The steps by which the refreshes of the matrix at a place come after those of the first matrix.
  // Gaps grow by doubling, so that this stays the same modulo the gap.
  int64_t offset(int64_t place, int64_t gap) const;
  int64_t turn_of(const std::string& matrix) const { return offset(places_.at(matrix), gap_); }
  int64_t worst_windows(std::span<const Turn> turns, int64_t gap) const;

  const GaloreSettings& settings_;
  std::map<std::string, int64_t> places_;  // of the matrices: their order of refreshes
  int64_t gap_ = 0;
};

}  // namespace jackscrew
