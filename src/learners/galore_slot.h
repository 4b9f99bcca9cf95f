// A matrix that learns in a subspace of its gradient (GaLore: Zhao et al., arXiv 2403.03507), which
// is never formed. With G = dW [out, in] and an orthonormal basis P:
//
//   of inputs   P [in, rank],  R = G P  [out, rank],   W -= R's step · Pᵀ
//   of outputs  P [out, rank], R = Gᵀ P [in, rank],    W -= P · (R's step)ᵀ
//
// R is what is accumulated, clipped and given to the optimizer. A subspace is refreshed now and
// then: over the steps of a window the slot sums Z = Gᵀ(G P), or G(Gᵀ P), from R and one more thin
// product; the principal directions of Z, one power iteration of the summed GᵀG, are the next P.
// Where many micro-batches make a step, Z sums each one's GᵀG: less noisy than that of their sum,
// not equal to it.
#pragma once

#include <memory>
#include <string>

#include "learners/galore_options.h"
#include "learners/gradient_buffer.h"
#include "learners/learner.h"

namespace jackscrew {

class GaloreSlot : public LearnerSlot {
 public:
  // Begins in a random subspace.
  GaloreSlot(const LearnerContext& context, Weight& weight, const GaloreSettings& settings);

  bool learns() const override { return true; }
  double gradient_products() const override;
  void backward(const Gradient& g, const Tensor* dx) override;
  void apply(Context& context, double weight_decay) override;
  void visit(const StateVisitor& visitor) const override;
  void restored(Context&) override { has_unread_window_ = false; }

  const std::string& name() const { return weight_->name(); }
  // The overlap of two random subspaces of this rank.
  double chance_overlap() const {
    return static_cast<double>(rank_) / static_cast<double>(basis_rows_);
  }

  // From now on gradients are summed for the next refresh. Allocates, so only outside of steps.
  void open_window();
  void close_window() { window_ = {}; }
  // Call before a checkpoint is read that has a window of this matrix which is not to be opened.
  void leave_window_unread() { has_unread_window_ = true; }
  // The memory of a window, in booked bytes.
  int64_t window_bytes() const;
  // What the first basis or a refresh takes at most, as Learner::decomposition_bytes() says it.
  int64_t decomposition_bytes() const;
  // Replaces the subspace by the one that the window's sums give, or by the `draw`th random one,
  // and frees the window. Returns the overlap of the old and the new (see overlap()). A window in
  // which all gradients were 0 leaves the subspace as it is, with an overlap of 1.
  double refresh(Context& context, uint32_t draw);

 private:
  bool in_window() const { return !window_.empty(); }
  bool finds_by_svd() const { return settings_.subspace == SubspaceKind::svd; }
  // How a whole gradient is turned for the basis to be of its rows.
  Transpose window_side() const { return of_inputs_ ? Transpose::yes : Transpose::no; }
  Tensor window_shape() const;  // Z without its values
  void random_basis(Context& context, uint32_t draw, const Tensor& to) const;
  // The basis [basis rows, rank], f32 or bf16: its own bytes, or decoded to context.scratch.
  Tensor basis(Context& context, DType dtype) const;
  void keep_basis(Context& context, const Tensor& basis);
  bool next_basis(Context& context, uint32_t draw, const Tensor& before, const Tensor& to);

  Weight* weight_;
  Memory* memory_;
  GaloreSettings settings_;
  uint64_t seed_;
  uint32_t tensor_;  // hash of the basis' name
  bool of_inputs_;
  int64_t rank_, basis_rows_, other_rows_;
  int64_t window_lane_sums_;               // see LearnerContext
  DType operand_dtype_;                    // see LearnerContext
  OwnedTensor basis_;                      // bytes of settings_.projection
  GradientBuffer projected_;               // R, [other rows, rank]; training only
  std::unique_ptr<OptimizerState> state_;  // of R; training only
  GradientBuffer window_;                  // Z, f32, of window_shape(), in a window
  bool has_unread_window_ = false;         // until the checkpoint is restored
};

}  // namespace jackscrew
