// Ops: the only door between the model and the hardware.
//
// Three kinds of calls pass through it: row kernels (any room brings its own), matrix products and
// attention (hand-tuned per device), and copies. All are issued in order on one stream, except
// copy_async(). Tensors belong to the device that the Ops was made for. On the plan device nothing
// is computed and no pointer is followed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/int8_group.h"
#include "kernels/isa.h"
#include "kernels/row_kernel.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"

namespace jackscrew {

enum class Transpose : bool { no, yes };
enum class Accumulate : bool { no, yes };

// Sequences packed one after another: tokens [cu_seqlens[i], cu_seqlens[i + 1]) are sequence i.
// With fewer queries than keys (a KV cache) the queries are the last positions of their sequence.
struct AttentionShape {
  Tensor cu_seqlens_q;  // i32 [sequences + 1]
  Tensor cu_seqlens_k;  // i32 [sequences + 1]; the same tensor when training
  int64_t sequences = 0;
  int64_t num_heads = 0;     // query heads
  int64_t num_kv_heads = 0;  // divides num_heads
  int64_t head_dim = 0;
  float scale = 1.0f;  // of the scores, before softmax
  int64_t window = 0;  // keys that a query sees at most, its own the last; 0: all up to it
  // bf16: operands of products may be rounded to it where the hardware multiplies that faster;
  // sums and softmax are f32 either way.
  DType operands = DType::f32;
};

// A matrix of signed bytes with scales: an element is scale * code.
struct Int8Rows {
  Tensor codes;   // i8 [rows, cols], any row stride
  Tensor scales;  // f32 [rows], or [rows, groups] with groups of kInt8Group columns
};

// What repeat() has done with its work.
struct RepeatCounts {
  int64_t issued =
      0;  // times that a body ran to issue its work: the first, and where none is recorded
  int64_t recorded = 0;  // pieces of work
  int64_t replayed = 0;  // times
  int64_t refused = 0;   // pieces of work that could not be recorded
  std::string refusal;   // why, the first time
};

class Ops {
 public:
  Ops(int threads, IsaLevel isa) : threads_(threads), isa_(isa) {}
  virtual ~Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;

  int threads() const { return threads_; }
  IsaLevel isa() const { return isa_; }  // of the host's CPU
  // The name of the instruction set that computes; with another one last bits differ.
  virtual std::string level() const { return isa_name(isa_); }
  // True on the plan device: there is nothing to read back.
  virtual bool plans_only() const = 0;

  // Runs kernel(team, row) for row in [0, rows). `args` is copied.
  template <class Args>
  void launch(const Args& args, int64_t rows) {
    launch_rows(row_kernel<Args>(), &args, rows);
  }

  // c [m, n] (+)= op(a) [m, k] · op(b) [k, n]. a and b are both f32 or both bf16; c is f32, or bf16
  // if they are. Sums are f32; if c is bf16 they are rounded once, after c itself was added. Any
  // row strides. The bits of c do not depend on the number of threads.
  virtual void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                    const Tensor& c, Accumulate accumulate) = 0;
  // c = addend + op(a) · op(b), for an f32 c and an addend like it that shares no memory with it.
  virtual void gemm_onto(const Tensor& addend, const Tensor& a, Transpose transpose_a,
                         const Tensor& b, Transpose transpose_b, const Tensor& c) {
    copy(c, addend);
    gemm(a, transpose_a, b, transpose_b, c, Accumulate::yes);
  }
  // c = scale · op(a) · op(b) for a contiguous c, rounded once where that is bf16.
  virtual void gemm_scaled(float scale, const Tensor& a, Transpose transpose_a, const Tensor& b,
                           Transpose transpose_b, const Tensor& c, Arena& scratch);
  // Whether the hardware multiplies bf16, so that gemm() need not emulate it.
  virtual bool has_bf16() const = 0;
  // The number of rows from which a product with a large weight, forward and backward, is bound by
  // arithmetic rather than by reading the weight.
  virtual int64_t product_rows() const { return 64; }
  // The same where the f32 gradient of the weight is read and written as well.
  virtual int64_t gradient_rows() const { return product_rows(); }
  // Whether a bf16 product of a single token, too, should read a weight as it is stored, in f32. On
  // a GPU the two kernels that convert x and y would cost more than it saves.
  virtual bool multiplies_tokens_as_stored() const { return true; }
  // About how many bytes of a weight a product should decode at a time. On CPUs 16 MiB: at the
  // shapes of a 7B model a bf16 product over a bf16 weight reaches 80 % of its speed with panels of
  // 4 MiB, 88 % with 16 and 91 % with 32, and a panel is memory of the run.
  virtual int64_t panel_bytes() const { return int64_t{16} << 20; }

  // c [m, n] (+)= a [m, k] · op(b) [k, n] for int8 matrices, c f32. a has scales [m, groups]. b has
  // scales [n], or none if it is not transposed: the scales of its rows then lie along the
  // contraction and have to be folded into a before a is rounded. Codes of a stay within
  // int8_limit(), those of b may be any.
  // The sum over a group is an exact integer. No bit of c depends on threads, on the instruction
  // set or on other rows.
  virtual void gemm_int8(const Int8Rows& a, const Int8Rows& b, Transpose transpose_b,
                         const Tensor& c, Accumulate accumulate, Arena& scratch) = 0;
  // The largest magnitude of a code of a: 127, or 63 where the hardware adds pairs of products in
  // 16 bits with saturation.
  virtual int32_t int8_limit() const = 0;

  // Causal softmax attention, FlashAttention-2 (Dao 2023, algorithm 1): tiled, no [T, T] matrix.
  //   q [tokens_q, num_heads * head_dim], k, v [tokens_k, num_kv_heads * head_dim], all f32 or,
  //   with operands of bf16 and where has_bf16_attention(), all bf16; rows of k and v beyond the
  //   last sequence are not read
  //   out like q; lse f32 [num_heads, tokens_q], the log-sum-exp of each row of scores
  virtual void attention_forward(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                                 const Tensor& v, const Tensor& out, const Tensor& lse,
                                 Arena& scratch) = 0;
  // Writes dq, dk and dv, all f32, from dout, which is like out, and from what forward read and
  // wrote. Deterministic. Needs cu_seqlens_q == cu_seqlens_k.
  virtual void attention_backward(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const Tensor& out, const Tensor& lse,
                                  const Tensor& dout, const Tensor& dq, const Tensor& dk,
                                  const Tensor& dv, Arena& scratch) = 0;

  // Whether attention takes tensors of bf16.
  virtual bool has_bf16_attention() const { return false; }

  // Copies between host and device, or within either; same dtype and shape. Once the call returns,
  // the host's side may be read or changed.
  virtual void copy(const Tensor& to, const Tensor& from) = 0;
  // Waits until all that was issued is done.
  virtual void finish() {}

  // A copy that, where has_async_copy(), runs concurrently with the stream and in no order with it:
  // it reads what was written before the last finish(), and what it writes on the device is visible
  // after the next.
  virtual void copy_async(const Tensor& to, const Tensor& from) { copy(to, from); }
  virtual bool has_async_copy() const { return false; }

  virtual void zero(const Tensor& tensor) = 0;

  // Issues the work of body(), which must be the same whenever `key` is: launches, products,
  // attention, copies and zeroing within the device, at the same addresses. Where that pays, the
  // work is recorded once and replayed without running body(), which therefore must have no other
  // effect.
  virtual void repeat(const std::vector<int64_t>& /*key*/, const std::function<void()>& body) {
    body();
  }
  // Drops what is recorded, where work of the same keys will be other work from here on.
  virtual void forget_repeats() {}
  virtual RepeatCounts repeat_counts() const { return {}; }

  // Issues the work of body(), of which each part that follows a begin_part() has nothing to do
  // with the other parts: the updates of a model's tensors. Where that pays, launches of one kernel
  // (row_kernel.h, BatchedKernel) by several parts become one.
  virtual void in_batches(const std::function<void()>& body) { body(); }
  virtual void begin_part() {}

  // For measurements where work goes on after the call that issued it. mark() marks the moment at
  // which all that was issued so far is done; not within repeat(). seconds_between_marks() waits
  // for all marks, returns the time from each to the next, and forgets them.
  virtual bool has_marks() const { return false; }
  virtual void mark() {}
  virtual std::vector<double> seconds_between_marks() { return {}; }

 protected:
  virtual void launch_rows(const RowKernel& kernel, const void* args, int64_t rows) = 0;

 private:
  int threads_;
  IsaLevel isa_;
};

}  // namespace jackscrew
