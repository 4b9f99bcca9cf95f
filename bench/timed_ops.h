// Ops that measure what passes through them, by the part of a training step that it belongs to: by
// the host's clock, or by marks on the device where work goes on after the call (Ops::mark).
// Measured work is never replayed, since marks stand between its pieces.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/machine.h"
#include "kernels/ops.h"

namespace jackscrew {

enum class Part {
  forward,
  input_gradient,
  weight_gradient,
  head_forward,
  head_input_gradient,
  head_weight_gradient,
  attention_forward,
  attention_backward,
  norms,
  rope,
  swiglu,
  cross_entropy,
  decoding,
  embedding,
  other_rows,
  optimizer,
  copies,
  count
};
inline constexpr size_t kParts = static_cast<size_t>(Part::count);

inline const char* part_name(size_t part) {
  static constexpr std::array<const char*, kParts> kNames = {
      "linear forward", "linear dx",          "linear dW",  "head forward", "head dx",   "head dW",
      "attention",      "attention bwd",      "norms",      "rope",         "swiglu",    "softmax",
      "decode, cast",   "gather and scatter", "other rows", "optimizer",    "copy, zero"};
  return kNames[part];
}

struct PartCost {
  double seconds = 0;
  double operations = 0;  // multiply-adds times two; 0 where memory, not arithmetic, is the limit
};
using PartCosts = std::array<PartCost, kParts>;
using KernelSeconds = std::map<std::string_view, double>;  // of row kernels, by name

// Gives access to what Ops keeps for its own launch().
class OpsLaunch : public Ops {
 public:
  static constexpr auto kRows = &OpsLaunch::launch_rows;
};

class TimedOps : public Ops {
 public:
  // A product with an extent of `vocab_size`, or rows that long, is the head's.
  TimedOps(std::unique_ptr<Ops> inner, int64_t vocab_size, const BenchClock& clock,
           PartCosts& costs)
      : Ops(inner->threads(), inner->isa()),
        inner_(std::move(inner)),
        vocab_size_(vocab_size),
        clock_(&clock),
        costs_(&costs) {}

  // Whether work is measured or only passed on. On from the beginning, but where a device has
  // marks.
  void measure(bool on) {
    is_on_ = on;
    if (on && marks_) inner_->mark();
  }
  // Adds what was measured by marks to the costs: to be called once work has been issued. The
  // seconds from the first mark to the last.
  double collect() {
    double total = 0.0;
    const std::vector<double> seconds = inner_->seconds_between_marks();
    for (size_t i = 0; i < seconds.size(); ++i) {
      add(marked_[i], seconds[i]);
      total += seconds[i];
    }
    marked_.clear();
    return total;
  }
  // Of all that was measured.
  const KernelSeconds& kernel_seconds() const { return kernel_seconds_; }

  std::string level() const override { return inner_->level(); }
  bool plans_only() const override { return inner_->plans_only(); }
  bool has_bf16() const override { return inner_->has_bf16(); }
  int64_t product_rows() const override { return inner_->product_rows(); }
  int64_t gradient_rows() const override { return inner_->gradient_rows(); }
  bool multiplies_tokens_as_stored() const override {
    return inner_->multiplies_tokens_as_stored();
  }
  int64_t panel_bytes() const override { return inner_->panel_bytes(); }
  bool has_bf16_attention() const override { return inner_->has_bf16_attention(); }
  bool has_async_copy() const override { return inner_->has_async_copy(); }
  void copy_async(const Tensor& to, const Tensor& from) override { inner_->copy_async(to, from); }
  void repeat(const std::vector<int64_t>& key, const std::function<void()>& body) override {
    is_on_ ? body() : inner_->repeat(key, body);
  }
  void forget_repeats() override { inner_->forget_repeats(); }
  RepeatCounts repeat_counts() const override { return inner_->repeat_counts(); }
  // The norm of the gradients, or the update with what it encodes: measured as a whole, none of its
  // kernels by itself.
  void in_batches(const std::function<void()>& body) override {
    if (!is_on_) return inner_->in_batches(body);
    time({Part::optimizer, 0.0}, [&] {
      is_on_ = false;
      inner_->in_batches(body);
      is_on_ = true;
    });
  }
  void begin_part() override { inner_->begin_part(); }

  // Forward multiplies by a transposed weight, dx by a weight, dW by a transposed gradient.
  void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
            const Tensor& c, Accumulate accumulate) override {
    time(product(a, transpose_a, transpose_b, c),
         [&] { inner_->gemm(a, transpose_a, b, transpose_b, c, accumulate); });
  }
  void gemm_onto(const Tensor& addend, const Tensor& a, Transpose transpose_a, const Tensor& b,
                 Transpose transpose_b, const Tensor& c) override {
    time(product(a, transpose_a, transpose_b, c),
         [&] { inner_->gemm_onto(addend, a, transpose_a, b, transpose_b, c); });
  }
  void gemm_scaled(float scale, const Tensor& a, Transpose transpose_a, const Tensor& b,
                   Transpose transpose_b, const Tensor& c, Arena& scratch) override {
    time(product(a, transpose_a, transpose_b, c),
         [&] { inner_->gemm_scaled(scale, a, transpose_a, b, transpose_b, c, scratch); });
  }
  // The head's dx counts as a linear's where the head comes in panels.
  void gemm_int8(const Int8Rows& a, const Int8Rows& b, Transpose transpose_b, const Tensor& c,
                 Accumulate accumulate, Arena& scratch) override {
    const bool forward = transpose_b == Transpose::yes;
    const bool head = c.row_stride() == vocab_size_ || b.codes.rows() == vocab_size_;
    const Part part = forward ? (head ? Part::head_forward : Part::forward)
                              : (head ? Part::head_input_gradient : Part::input_gradient);
    time({part, 2.0 * static_cast<double>(c.size()) * static_cast<double>(a.codes.cols())},
         [&] { inner_->gemm_int8(a, b, transpose_b, c, accumulate, scratch); });
  }
  int32_t int8_limit() const override { return inner_->int8_limit(); }
  void attention_forward(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                         const Tensor& v, const Tensor& out, const Tensor& lse,
                         Arena& scratch) override {
    time({Part::attention_forward, 2.0 * attention_product(shape, q.rows())},
         [&] { inner_->attention_forward(shape, q, k, v, out, lse, scratch); });
  }
  void attention_backward(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                          const Tensor& v, const Tensor& out, const Tensor& lse, const Tensor& dout,
                          const Tensor& dq, const Tensor& dk, const Tensor& dv,
                          Arena& scratch) override {
    time({Part::attention_backward, 5.0 * attention_product(shape, q.rows())},
         [&] { inner_->attention_backward(shape, q, k, v, out, lse, dout, dq, dk, dv, scratch); });
  }
  void copy(const Tensor& to, const Tensor& from) override {
    time({Part::copies, 0.0}, [&] { inner_->copy(to, from); });
  }
  void finish() override { inner_->finish(); }
  void zero(const Tensor& tensor) override {
    time({Part::copies, 0.0}, [&] { inner_->zero(tensor); });
  }

 protected:
  void launch_rows(const RowKernel& kernel, const void* args, int64_t rows) override {
    time({row_part(kernel.name), 0.0, kernel.name},
         [&] { ((*inner_).*OpsLaunch::kRows)(kernel, args, rows); });
  }

 private:
  static Part row_part(std::string_view name) {
    if (name.starts_with("RmsNorm")) return Part::norms;
    if (name.starts_with("Rotary")) return Part::rope;
    if (name.starts_with("Swiglu")) return Part::swiglu;
    if (name.starts_with("SoftmaxCrossEntropy")) return Part::cross_entropy;
    if (name.starts_with("Convert") || name.starts_with("Decode")) return Part::decoding;
    if (name.starts_with("Gather") || name.starts_with("Scatter")) return Part::embedding;
    for (const char* prefix : {"Adamw", "SquaredNorm", "FinishNorm", "Round"}) {
      if (name.starts_with(prefix)) return Part::optimizer;
    }
    return Part::other_rows;
  }

  // One product over the causal half of the scores of all heads; the sequences are equally long.
  static double attention_product(const AttentionShape& shape, int64_t rows) {
    const auto tokens = static_cast<double>(rows);
    const double length = tokens / static_cast<double>(shape.sequences);
    return tokens * length * static_cast<double>(shape.num_heads * shape.head_dim);
  }

  struct Work {
    Part part;
    double operations;
    std::string_view kernel = {};  // of rows
  };

  Work product(const Tensor& a, Transpose transpose_a, Transpose transpose_b,
               const Tensor& c) const {
    const int64_t depth = transpose_a == Transpose::yes ? a.rows() : a.cols();
    const bool head =
        c.rows() == vocab_size_ || c.row_stride() == vocab_size_ || a.row_stride() == vocab_size_;
    const Part part =
        transpose_a == Transpose::yes ? (head ? Part::head_weight_gradient : Part::weight_gradient)
        : transpose_b == Transpose::yes ? (head ? Part::head_forward : Part::forward)
                                        : (head ? Part::head_input_gradient : Part::input_gradient);
    return {part, 2.0 * static_cast<double>(c.size()) * static_cast<double>(depth)};
  }

  template <class Body>
  void time(const Work& work, const Body& body) {
    if (!is_on_) return body();
    if (marks_) {
      body();
      inner_->mark();
      marked_.push_back(work);
      return;
    }
    const double begin = clock_->seconds();
    body();
    add(work, clock_->seconds() - begin);
  }

  void add(const Work& work, double seconds) {
    PartCost& cost = (*costs_)[static_cast<size_t>(work.part)];
    cost.seconds += seconds;
    cost.operations += work.operations;
    if (!work.kernel.empty()) kernel_seconds_[work.kernel] += seconds;
  }

  std::unique_ptr<Ops> inner_;
  int64_t vocab_size_;
  const BenchClock* clock_;
  PartCosts* costs_;
  bool marks_ = inner_->has_marks();
  bool is_on_ = !marks_;
  KernelSeconds kernel_seconds_;
  std::vector<Work> marked_;  // what lies before each mark but the first
};

}  // namespace jackscrew
