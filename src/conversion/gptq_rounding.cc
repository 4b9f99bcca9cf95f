#include "conversion/gptq_rounding.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "conversion/column_order.h"
#include "conversion/for_rows.h"
#include "conversion/gptq_row.h"
#include "conversion/value_checks.h"
#include "quant/packed_source.h"

namespace jackscrew {

namespace {

constexpr int64_t kLeastGroup = 16, kLargestGroup = 1024;

void check_f16_range(const WeightSpec& weight, const GptqMatrix& matrix, const GptqLayout& layout) {
  for (size_t i = 0; i < matrix.scales.size(); ++i) {
    const float scale = to_float(matrix.scales[i]);
    if (has_finite_values(PackedScale::f16, scale, layout.bits, matrix.zeros[i])) continue;
    fail_beyond_f16(weight, "GPTQ");
  }
}

}  // namespace

void check_gptq_layout(const GptqLayout& layout) {
  const int64_t bits = layout.bits, size = layout.group_size;
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8) {
    throw Error(ErrorKind::usage, fmt::format("GPTQ has no codes of {} bits", bits),
                "bits=2, 3, 4 or 8");
  }
  if (size == -1) return;
  if (size < kLeastGroup || size > kLargestGroup ||
      !std::has_single_bit(static_cast<uint64_t>(size))) {
    throw Error(ErrorKind::usage, fmt::format("group_size={} is none that programs read", size),
                "a power of two from 16 to 1024, or -1: one group for all of a row");
  }
}

GptqMatrix round_gptq(Ops& ops, Memory& memory, const WeightSpec& weight, const Tensor& w,
                      const Tensor& u, const std::vector<int32_t>& order,
                      const GptqLayout& layout) {
  const int64_t rows = w.rows(), cols = w.cols();
  check_finite(weight, w);
  GptqMatrix out{rows, cols, layout.groups(cols), {}, {}, {}, {}};
  out.codes.resize(static_cast<size_t>(rows * cols));
  out.zeros.resize(static_cast<size_t>(rows * out.groups));
  out.scales.resize(static_cast<size_t>(rows * out.groups));
  const std::vector<float> cost = column_costs(u, cols);
  const OwnedTensor errors(memory, Purpose::workspace, DType::f32, {rows, kGptqColumns});
  const int64_t size = layout.group_size == -1 ? cols : layout.group_size;
  const GptqRowKernel round_row = ops.isa() == IsaLevel::v3 ? v3::kRoundGptqRow : v4::kRoundGptqRow;
  // The errors of a block's columns reach the rest of the matrix in one product. Groups of at most
  // a block's width end with a block; within a block, a row is rounded from first column to last.
  for (int64_t begin = 0; begin < cols; begin += kGptqColumns) {
    const int64_t end = std::min(cols, begin + kGptqColumns);
    const GptqColumns columns{.w = w.data<float>(),
                              .u = u.empty() ? nullptr : u.data<float>(),
                              .cost = cost.data(),
                              .cols = cols,
                              .begin = begin,
                              .end = end,
                              .group_size = size,
                              .groups = out.groups,
                              .bits = layout.bits,
                              .symmetric = layout.symmetric,
                              .codes = out.codes.data(),
                              .zeros = out.zeros.data(),
                              .scales = out.scales.data(),
                              .errors = errors.view().data<float>()};
    for_rows(ops.threads(), rows, [&](int64_t row) { round_row(columns, row); });
    if (!u.empty()) propagate_errors(ops, errors.view(), u, w, begin, end);
  }
  check_f16_range(weight, out, layout);
  out.group_of.resize(static_cast<size_t>(cols));
  for (int64_t i = 0; i < cols; ++i) {
    const int64_t column = order.empty() ? i : order[static_cast<size_t>(i)];
    out.group_of[static_cast<size_t>(column)] = static_cast<int32_t>(i / size);
  }
  if (order.empty()) return out;
  std::vector<uint8_t> codes(out.codes.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < cols; ++i) {
      codes[static_cast<size_t>(row * cols + order[static_cast<size_t>(i)])] =
          out.codes[static_cast<size_t>(row * cols + i)];
    }
  }
  out.codes = std::move(codes);
  return out;
}

int64_t gptq_rounding_bytes(int64_t rows) {
  return booked_f32(rows, kGptqColumns);
}

int64_t gptq_held_bytes(const WeightSpec& weight, const GptqLayout& layout) {
  constexpr int64_t kGroup = sizeof(f16) + 1;                   // a scale and a zero
  constexpr int64_t kColumn = sizeof(float) + sizeof(int32_t);  // a cost and a group
  const int64_t rows = weight.rows, cols = weight.cols;
  const int64_t matrix = checked_mul(rows, checked_add(cols, layout.groups(cols) * kGroup));
  // Codes in another order; or words, the groups of columns among them, and the bytes of these.
  return checked_add(matrix, std::max(checked_add(weight.size(), cols * kColumn),
                                      2 * bytes_of(gptq_specs(weight, layout))));
}

}  // namespace jackscrew
