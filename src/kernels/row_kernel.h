// Row kernels: arithmetic on rows, written once and compiled for every target.
//
// A row kernel is a struct of plain arguments with a call operator over a Team:
//
//   struct Scale {
//     float* x;       // [rows, cols]
//     int64_t cols;
//     float factor;
//     template <class Team>
//     JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
//       float* r = x + row * cols;
//       team.each(cols, [&](int64_t i) { r[i] *= factor; });
//     }
//   };
//   JACKSCREW_ROW_KERNEL(Scale)
//
// in a file `<room>/<name>.rows.h`. The build includes that file once per target:
//   * ordinary code sees the struct and `row_kernel<Scale>()`, which Ops::launch(Scale{...}, rows)
//   uses;
//   * row_cpu.h compiles it for one CPU instruction set: a thread per row, `each` a simd loop;
//   * cuda/row_cuda.cuh compiles it for GPUs: a block per row, `each` a block-strided loop; or a
//     warp per row, if the struct has `static constexpr bool kShortLoops = true`, for loops over
//     groups of a hundred elements or so, in which most of a block would only wait;
//   * row_table.h joins the compiled versions into the RowKernel table.
//
// A struct may also ask for:
//   * Team::Shared<kSharedFloats>, memory that the loops of a row share: on a GPU the block's
//     shared memory, on a CPU the stack;
//   * `static constexpr int kBlocksAtOnce`: the compiler saves registers, so that a multiprocessor
//     runs so many blocks of threads at a time;
//   * `static constexpr bool kBatched = true`: several launches may become one, see
//     Ops::in_batches().
//
// A loop in which element i of some rows depends on elements i of others is better written as
//
//       team.elementwise(cols, [&](float& value) { value *= factor; }, updates(x + row * cols));
//
// with operands of row_operands.h: on GPUs it loads all before it stores anything, 16 bytes at a
// time.
//
// Inside a kernel: no std:: templates and no helpers that are not force-inlined (base/inline.h says
// why); on a GPU `team.each` ends with a barrier, so a later loop may read what an earlier one
// wrote.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/inline.h"

namespace jackscrew {

// Runs rows [begin, end) of a kernel on the calling thread.
using CpuRowFunction = void (*)(const void* args, int64_t begin, int64_t end);

// Runs all rows of a kernel on a GPU, in order with what else is on the stream (a cudaStream_t).
// Returns a cudaError_t.
using CudaRowFunction = int (*)(const void* args, int64_t rows, void* stream);

// The same for several launches at once: args[i] with rows[i] rows, for i in [0, launches). The
// launches run in no order.
using CudaBatchFunction = int (*)(const void* args, const int64_t* rows, int launches,
                                  void* stream);
// The most launches that one call takes: their arguments are a kernel's parameters, for which every
// GPU has 4 KiB.
inline constexpr int kMostLaunches = 32;

// Kernels with `static constexpr bool kBatched = true`, for work on many small tensors, whose
// launches would take a GPU longer than the work: see Ops::in_batches().
template <class Args>
concept BatchedKernel = requires {
  requires Args::kBatched;
};

struct RowKernel {
  const char* name;
  size_t args_bytes;  // sizeof(Args)
  CpuRowFunction x86_64_v3;
  CpuRowFunction x86_64_v4;
  CudaRowFunction cuda;          // null in a build without CUDA
  CudaBatchFunction cuda_batch;  // null if it is not batched, too
};

// The compiled versions of a kernel; specialised by JACKSCREW_ROW_KERNEL.
template <class Args>
const RowKernel& row_kernel();

}  // namespace jackscrew

#define JACKSCREW_ROW JACKSCREW_INLINE

// Generated sources define JACKSCREW_ROW_KERNEL before they include a .rows.h; in ordinary code it
// only declares row_kernel().
#if !defined(JACKSCREW_ROW_KERNEL)
#define JACKSCREW_ROW_KERNEL(Args) \
  template <>                      \
  const RowKernel& row_kernel<Args>();
#endif
