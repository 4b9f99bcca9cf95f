#include "learners/galore_slot.h"

#include <algorithm>
#include <cmath>

#include "kernels/add_scaled.h"
#include "learners/galore.rows.h"
#include "learners/in_place.h"
#include "learners/subspace.h"
#include "optim/squares.h"
#include "quant/plain.h"

namespace jackscrew {

namespace {

// to += G basis, or Gᵀ basis.
void project(const Gradient& g, bool of_inputs, const Tensor& basis, const Tensor& to) {
  of_inputs ? g.add_right(basis, to) : g.add_left(basis, to);
}

}  // namespace

GaloreSlot::GaloreSlot(const LearnerContext& context, Weight& weight,
                       const GaloreSettings& settings)
    : weight_(&weight),
      memory_(&context.memory),
      settings_(settings),
      seed_(context.seed),
      tensor_(name_hash((weight.name() + ".projection").c_str())),
      of_inputs_(settings.of_inputs(weight.spec())),
      rank_(settings.rank_of(weight.spec())),
      basis_rows_(of_inputs_ ? weight.cols() : weight.rows()),
      other_rows_(of_inputs_ ? weight.rows() : weight.cols()),
      window_lane_sums_(context.window_lane_sums),
      operand_dtype_(context.operand_dtype) {
  if (!context.training) return;
  basis_ = OwnedTensor(*memory_, Purpose::projections, DType::u8,
                       {settings_.projection->storage_bytes(basis_rows_, rank_)});
  projected_ = GradientBuffer(context, {other_rows_, rank_});
  state_ = context.optimizer.make_state(*memory_, projected_.view().size());
  Context run{context.ops, context.scratch, context.scalars};
  const Arena::Frame frame(run.scratch);
  const Tensor first = run.scratch.tensor(DType::f32, {basis_rows_, rank_});
  random_basis(run, 0, first);
  keep_basis(run, first);
}

double GaloreSlot::gradient_products() const {
  // Two thin products: r (m + n) multiplications per token in place of m n.
  const auto sides = static_cast<double>(basis_rows_ + other_rows_);
  return static_cast<double>(rank_) * sides / static_cast<double>(weight_->size());
}

void GaloreSlot::backward(const Gradient& g, const Tensor*) {
  Context& context = g.context();
  const Arena::Frame frame(context.scratch);
  const Tensor p = basis(context, DType::f32);
  if (in_window() && finds_by_svd()) g.add_dw(window_.view());
  if (!in_window() || finds_by_svd()) return project(g, of_inputs_, p, projected_.view());
  // R of this micro-batch alone, for its share of Z.
  const Tensor r = context.scratch.tensor(DType::f32, {other_rows_, rank_});
  context.ops.zero(r);
  project(g, of_inputs_, p, r);
  add_scaled(context.ops, projected_.view(), r);
  project(g, !of_inputs_, r, window_.view());
}

void GaloreSlot::apply(Context& context, double weight_decay) {
  const Arena::Frame frame(context.scratch);
  // The optimizer updates a parameter of zeros, which leaves in it the step in the coordinates of
  // the subspace, or zeros where the training step is not finite.
  const Tensor step = context.scratch.tensor(DType::f32, {other_rows_, rank_});
  context.ops.zero(step);
  state_->apply(context, step, projected_.view(), settings_.step_scale(weight_->spec()), 0.0);
  const Tensor p = basis(context, operand_dtype_);
  // Neighbouring bf16 values lie 1/128 apart, relative to the step: far less than its noise. It is
  // added to f32 values all the same.
  const Tensor operand = converted(context, step, operand_dtype_);
  const double rate_scale = settings_.element_scale(weight_->spec());
  update_in_place(context, *weight_, settings_.stochastic,
                  [&](const Tensor& values, int64_t begin, int64_t end) {
                    if (weight_decay > 0.0) {
                      context.ops.launch(DecayRows{values.data<float>(), context.scalars,
                                                   values.cols(), rate_scale, weight_decay},
                                         values.rows());
                    }
                    const Tensor& left = of_inputs_ ? operand : p;
                    const Tensor& right = of_inputs_ ? p : operand;
                    context.ops.gemm(left.rows(begin, end), Transpose::no, right, Transpose::yes,
                                     values, Accumulate::yes);
                  });
}

void GaloreSlot::visit(const StateVisitor& visitor) const {
  visitor(in_place_state(*weight_));
  if (state_ == nullptr) return;
  visitor(projected_.state(name()));
  visitor({name() + ".projection", StateRole::moment, basis_.view(), true});
  if (in_window()) {
    StateRef window = window_.window_state(name() + ".window");
    window.save = true;
    visitor(window);
  }
  if (has_unread_window_) {
    visitor({name() + ".window", StateRole::unread, window_shape(), true});
  }
  state_->visit(name(), visitor);
}

Tensor GaloreSlot::window_shape() const {
  if (finds_by_svd()) return {nullptr, DType::f32, {weight_->rows(), weight_->cols()}};
  return {nullptr, DType::f32, {basis_rows_, rank_}};
}

void GaloreSlot::open_window() {
  if (!settings_.has_windows()) return;
  const Tensor shape = window_shape();
  window_ = GradientBuffer(*memory_, Purpose::projections, {shape.rows(), shape.cols()},
                           window_lane_sums_);
}

int64_t GaloreSlot::window_bytes() const {
  if (!settings_.has_windows()) return 0;
  return (1 + window_lane_sums_) * booked_bytes(window_shape().bytes());
}

int64_t GaloreSlot::decomposition_bytes() const {
  int64_t most = orthonormalise_host_bytes(rank_);  // of the first basis, which is random
  if (settings_.subspace == SubspaceKind::power) {
    most = std::max(most, principal_basis_host_bytes(rank_));
  }
  if (finds_by_svd()) {
    most = std::max(most, exact_basis_host_bytes(weight_->rows(), weight_->cols(), window_side()));
  }
  if (settings_.basis == SubspaceBasis::aligned) {
    most = std::max(most, align_basis_host_bytes(rank_));
  }
  return most;
}

double GaloreSlot::refresh(Context& context, uint32_t draw) {
  const Arena::Frame frame(context.scratch);
  const Tensor before = basis(context, DType::f32);
  const Tensor after = context.scratch.tensor(DType::f32, {basis_rows_, rank_});
  const bool found = next_basis(context, draw, before, after);
  window_ = {};
  if (!found) return 1.0;
  if (settings_.basis == SubspaceBasis::aligned) align_basis(context, after, before);
  const Tensor c = context.scratch.tensor(DType::f32, {rank_, rank_});
  context.ops.gemm(before, Transpose::yes, after, Transpose::no, c, Accumulate::no);
  if (settings_.basis == SubspaceBasis::principal) state_->rotate(context, c);
  keep_basis(context, after);
  return overlap(context, c);
}

// False where the window's sum is next to zero or not finite and thus determines no subspace.
bool GaloreSlot::next_basis(Context& context, uint32_t draw, const Tensor& before,
                            const Tensor& to) {
  if (settings_.subspace == SubspaceKind::random) {
    random_basis(context, draw, to);
    return true;
  }
  const double norm = std::sqrt(squared_norm(context, window_.view()));
  // With a smaller norm, the shift below would be lost among the least numbers of f32, 1e-45.
  constexpr double kLeastNorm = 1e-25;
  if (!context.ops.plans_only() && !(norm > kLeastNorm && std::isfinite(norm))) return false;
  if (finds_by_svd()) {
    exact_basis(context, window_.view(), window_side(), to);
    return true;
  }
  // (GᵀG + s) P has the principal directions of GᵀG P, and full rank even where a window has fewer
  // tokens than the rank: directions without gradient then stay as they were. s is 1e-5 of a
  // typical column's length, above the rounding error of f32 products in the largest.
  constexpr double kShift = 1e-5;
  add_scaled(context.ops, window_.view(), before,
             kShift * norm / std::sqrt(static_cast<double>(rank_)));
  principal_basis(context, window_.view(), to);
  return true;
}

void GaloreSlot::random_basis(Context& context, uint32_t draw, const Tensor& to) const {
  context.ops.launch(RandomRows{to.data<float>(), seed_, rank_, draw, tensor_}, basis_rows_);
  orthonormalise(context, to);
}

Tensor GaloreSlot::basis(Context& context, DType dtype) const {
  const Storage kept{basis_.view(), basis_rows_, rank_};
  if (dtype == DType::f32 && settings_.projection == &f32_format()) {
    return {kept.bytes.raw(), DType::f32, {basis_rows_, rank_}};
  }
  const Tensor out = context.scratch.tensor(dtype, {basis_rows_, rank_});
  settings_.projection->decode(context.ops, kept, 0, basis_rows_, out);
  return out;
}

void GaloreSlot::keep_basis(Context& context, const Tensor& basis) {
  settings_.projection->encode(
      context.ops, [&](int64_t begin, int64_t end) { return basis.rows(begin, end); },
      {basis_.view(), basis_rows_, rank_}, {}, context.scratch);
}

}  // namespace jackscrew
