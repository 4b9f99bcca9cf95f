#include "kernels/cpu/gemm_int8.h"

#include <algorithm>

#include "base/parallel.h"
#include "kernels/int8_scratch.h"
#include "kernels/op_arguments.h"
#include "kernels/rows/int8.rows.h"

namespace jackscrew {

namespace {

// Rows of a that one thread raises by the shift at a time: 64 rows of a model's width fill some
// pages.
constexpr int64_t kShiftedRows = 64;
// Rows of a task: b is packed anew for each, at some 2 % of the work on this many rows.
constexpr int64_t kTaskRows = 1024;
// Tasks per thread to aim at, to even out a thread that was held up.
constexpr int64_t kTasksPerThread = 4;
const Int8Kernels& kernels_of(IsaLevel isa) {
  if (isa == IsaLevel::v3) return v3::kInt8Kernels;
  return isa == IsaLevel::v4 ? v4::kInt8Kernels : v4::kInt8VnniKernels;
}

}  // namespace

void cpu_gemm_int8(int threads, IsaLevel isa, const Int8Rows& a, const Int8Rows& b,
                   Transpose transpose_b, const Tensor& c, Accumulate accumulate, Arena& scratch) {
  const bool tb = transpose_b == Transpose::yes;
  const int64_t m = c.rows();
  const int64_t n = c.cols();
  const int64_t k = a.codes.cols();
  if (m == 0 || n == 0) return;
  check_gemm_int8(a, b, transpose_b, c);
  const Arena::Frame frame(scratch);
  const Int8Scratch buffers = int8_scratch(isa, m, k, threads, scratch);
  const Int8Kernels& kernels = kernels_of(isa);
  const Int8Tile tile = int8_tile(isa);

  const ShiftCodes shift{a.codes.data<int8_t>(), buffers.a.data<uint8_t>(), k,
                         a.codes.row_stride(),   buffers.a.cols(),          int8_shift(isa)};
  const RowKernel& shift_rows = row_kernel<ShiftCodes>();
  parallel_for(threads, ceil_div(m, kShiftedRows), [&](int64_t task, int) {
    const int64_t begin = task * kShiftedRows;
    (isa == IsaLevel::v3 ? shift_rows.x86_64_v3 : shift_rows.x86_64_v4)(
        &shift, begin, std::min(m, begin + kShiftedRows));
  });

  // No bit depends on the cut, so it may depend on the number of threads.
  const int64_t stripes = ceil_div(n, tile.columns);
  const int64_t parts =
      std::max(ceil_div(m, kTaskRows), ceil_div(threads * kTasksPerThread, stripes));
  const int64_t part_rows = round_up(ceil_div(m, parts), tile.rows);
  const auto* codes = b.codes.data<int8_t>();
  const int64_t stride = b.codes.row_stride();
  parallel_for(threads, stripes * ceil_div(m, part_rows), [&](int64_t task, int thread) {
    const int64_t column = task % stripes * tile.columns;
    const int64_t columns = std::min(tile.columns, n - column);
    const int64_t first = task / stripes * part_rows;
    const int64_t last = std::min(m, first + part_rows);
    auto* packed =
        reinterpret_cast<uint32_t*>(buffers.b.data<uint8_t>() + thread * buffers.b.cols());
    int32_t* sums = buffers.sums.data<int32_t>() + thread * buffers.sums.cols();
    for (int64_t depth = 0; depth < k; depth += kInt8Depth) {
      const int64_t depth_end = std::min(k, depth + kInt8Depth);
      kernels.pack(codes + (tb ? column * stride + depth : depth * stride + column), stride, tb,
                   columns, depth_end - depth, packed, sums);
      const int64_t group = depth / kInt8Group;
      for (int64_t row = first; row < last; row += tile.rows) {
        kernels.multiply({.a = buffers.a.data<uint8_t>() + row * buffers.a.cols() + depth,
                          .a_scales = a.scales.data<float>() + row * a.scales.row_stride() + group,
                          .b = packed,
                          .sums = sums,
                          .b_scales = b.scales.empty() ? nullptr : b.scales.data<float>() + column,
                          .c = c.data<float>() + row * c.row_stride() + column,
                          .a_stride = buffers.a.cols(),
                          .a_scales_stride = a.scales.row_stride(),
                          .c_stride = c.row_stride(),
                          .rows = std::min(tile.rows, last - row),
                          .columns = columns,
                          .depth = depth_end - depth,
                          .accumulate = depth > 0 || accumulate == Accumulate::yes});
      }
    }
  });
}

}  // namespace jackscrew
