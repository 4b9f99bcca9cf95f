#include "conversion/gptq_rounding.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "conversion/column_order.h"

namespace jackscrew {

namespace {

// Columns whose errors reach the rest of the matrix in one product. Groups of as many or fewer end
// with a block; within one, a row is rounded from first to last.
constexpr int64_t kRoundedColumns = 128;
// Rows that one task rounds: enough to be worth handing out, few enough to be shared.
constexpr int64_t kRoundedRows = 16;
// Shares of the range that are tried, from all of it down to kLeastShare in equal steps. More
// steps, or a smaller least share, change the error of 4-bit weights by less than a thousandth.
constexpr int kScaleSteps = 24;
constexpr float kLeastShare = 0.55f;
constexpr int64_t kLeastGroup = 16, kLargestGroup = 1024;

struct Grid {
  float scale = 1.0f;  // as f16 has it
  float zero = 0.0f;
  float last = 0.0f;  // the largest code

  // Adding and taking away 1.5 * 2^23 rounds to the nearest, ties to even.
  float code(float x) const {
    constexpr float kMagic = 12582912.0f;
    const float q = (std::clamp(x / scale, -1024.0f, 1024.0f) + kMagic) - kMagic;
    return std::clamp(q + zero, 0.0f, last);
  }
  // As files are read: rounded to f16. What is beyond that is refused when all is done.
  float value(float code) const {
    return to_float(to_f16(std::clamp(scale * (code - zero), -kLargestF16, kLargestF16)));
  }
};

// The grid of the numbers in [low, high], of which a share is kept.
Grid grid_of(float low, float high, float share, const GptqLayout& layout) {
  constexpr float kLeastScale = 0x1p-24f;  // of f16 above 0
  Grid grid;
  grid.last = static_cast<float>((1 << layout.bits) - 1);
  const float reach = std::max(-low, high);
  const float range = (layout.symmetric ? 2.0f * reach : high - low) * share;
  grid.scale = to_float(to_f16(std::clamp(range / grid.last, kLeastScale, kLargestF16)));
  const float middle = static_cast<float>(1 << (layout.bits - 1));
  // A zero of 0 would be stored as -1, which programs read in different ways.
  grid.zero = layout.symmetric
                  ? middle
                  : std::clamp(std::nearbyint(-low * share / grid.scale), 1.0f, grid.last);
  return grid;
}

// The best grid for w [count], whose errors cost `cost` [count].
Grid best_grid(const float* w, const float* cost, int64_t count, const GptqLayout& layout) {
  const auto [least, largest] = std::minmax_element(w, w + count);
  const float low = std::min(*least, 0.0f), high = std::max(*largest, 0.0f);
  Grid best;
  float best_error = std::numeric_limits<float>::infinity();
  for (int step = 0; step < kScaleSteps; ++step) {
    const float share = 1.0f - (1.0f - kLeastShare) * static_cast<float>(step) /
                                   static_cast<float>(kScaleSteps - 1);
    const Grid grid = grid_of(low, high, share, layout);
    float error = 0.0f;
    for (int64_t i = 0; i < count; ++i) {
      const float miss = w[i] - grid.scale * (grid.code(w[i]) - grid.zero);
      error += cost[i] * miss * miss;
    }
    if (error < best_error || step == 0) {
      best = grid;
      best_error = error;
    }
  }
  return best;
}

// Rounds the columns of a matrix in the order in which they stand.
class ColumnRounding {
 public:
  ColumnRounding(const Tensor& w, const Tensor& u, const GptqLayout& layout, GptqMatrix& out)
      : w_(w), u_(u), layout_(layout), out_(out), cost_(column_costs(u, w.cols())) {}

  // Columns [begin, end) of a row; writes what is to be added to the row, times U, to `errors`.
  void round_row(int64_t row, int64_t begin, int64_t end, float* errors) const {
    const int64_t cols = w_.cols();
    const int64_t size = layout_.group_size == -1 ? cols : layout_.group_size;
    float* w = w_.data<float>() + row * cols;
    Grid grid;
    if (begin % size != 0) grid = read_grid(row, begin / size);
    for (int64_t k = begin; k < end; ++k) {
      if (k % size == 0) {
        grid = best_grid(w + k, cost_.data() + k, std::min(size, cols - k), layout_);
        write_grid(row, k / size, grid);
      }
      const float code = grid.code(w[k]);
      const float value = grid.value(code);
      out_.codes[static_cast<size_t>(row * cols + k)] = static_cast<uint8_t>(code);
      if (!u_.empty()) {
        const float* beside = u_.data<float>() + k * cols;
        const float error = (value - w[k]) / beside[k];
        for (int64_t j = k + 1; j < end; ++j) w[j] += error * beside[j];
        errors[k - begin] = error;
      }
      w[k] = value;
    }
  }

 private:
  size_t place(int64_t row, int64_t group) const {
    return static_cast<size_t>(row * out_.groups + group);
  }
  void write_grid(int64_t row, int64_t group, const Grid& grid) const {
    out_.scales[place(row, group)] = to_f16(grid.scale);
    out_.zeros[place(row, group)] = static_cast<uint8_t>(grid.zero);
  }
  Grid read_grid(int64_t row, int64_t group) const {
    return {to_float(out_.scales[place(row, group)]),
            static_cast<float>(out_.zeros[place(row, group)]),
            static_cast<float>((1 << layout_.bits) - 1)};
  }

  const Tensor& w_;
  const Tensor& u_;
  const GptqLayout& layout_;
  GptqMatrix& out_;
  std::vector<float> cost_;
};

void check_reach(const WeightSpec& weight, const GptqMatrix& matrix, const GptqLayout& layout) {
  const float reach = static_cast<float>(1 << layout.bits);
  for (const f16 scale : matrix.scales) {
    if (to_float(scale) * reach > kLargestF16) fail_beyond_f16(weight, "GPTQ");
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
  const ColumnRounding rounding(w, u, layout, out);
  const OwnedTensor errors(memory, Purpose::workspace, DType::f32, {rows, kRoundedColumns});
  for (int64_t begin = 0; begin < cols; begin += kRoundedColumns) {
    const int64_t end = std::min(cols, begin + kRoundedColumns);
    parallel_for(ops.threads(), ceil_div(rows, kRoundedRows), [&](int64_t task, int) {
      const int64_t last = std::min(rows, (task + 1) * kRoundedRows);
      for (int64_t row = task * kRoundedRows; row < last; ++row) {
        rounding.round_row(row, begin, end, errors.view().data<float>() + row * kRoundedColumns);
      }
    });
    if (u.empty() || end == cols) continue;
    ops.gemm(errors.view().columns(0, end - begin), Transpose::no,
             u.rows(begin, end).columns(end, cols), Transpose::no, w.columns(end, cols),
             Accumulate::yes);
  }
  check_reach(weight, out, layout);
  const int64_t size = layout.group_size == -1 ? cols : layout.group_size;
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

}  // namespace jackscrew
