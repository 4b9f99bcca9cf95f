#include "conversion/storage_rounding.h"

#include <algorithm>

#include "base/parallel.h"
#include "conversion/add_row.h"
#include "conversion/column_order.h"

namespace jackscrew {

namespace {

// Rows per task: enough to be worth handing out, few enough to share among threads.
constexpr int64_t kRoundedRows = 16;
// Columns whose errors reach the rest of the matrix in one product: a multiple of all blocks.
constexpr int64_t kColumns = 256;

// Columns [begin, end) of a matrix, a whole number of blocks.
struct Columns {
  const RowEncoder& encoder;
  AddRowKernel add_row;
  Tensor w, u, errors;                 // errors: f32 [rows, kColumns], divided by U_kk
  const std::vector<double>& weights;  // [cols]
  int64_t begin, end;
  uint8_t* out;  // the matrix's rows

  void round(int64_t row) const {
    const int64_t cols = w.cols(), block_columns = encoder.block_columns;
    float* values = w.data<float>() + row * cols;
    float* of_row = errors.data<float>() + row * kColumns;
    int64_t block = begin;
    const ElementRounded rounded = [&](int64_t i, float value) {
      const int64_t k = block + i;
      const float* beside = u.data<float>() + k * cols;
      const float error = (value - values[k]) / beside[k];
      add_row(values + k + 1, beside + k + 1, error, end - k - 1);
      of_row[k - begin] = error;
    };
    const int64_t row_bytes = encoder.format->row_bytes(cols);
    const int64_t block_bytes = encoder.format->row_bytes(block_columns);
    uint8_t* to = out + row * row_bytes + begin / block_columns * block_bytes;
    for (; block < end; block += block_columns, to += block_bytes) {
      encoder.round_block(values + block, weights.data() + block, rounded, to);
    }
  }
};

}  // namespace

std::vector<uint8_t> round_storage(Ops& ops, Memory& memory, const WeightSpec& weight,
                                   const Tensor& w, const Tensor& u, const RowEncoder& encoder) {
  const int64_t rows = w.rows(), cols = w.cols();
  const int64_t row_bytes = encoder.format->row_bytes(cols);
  check_finite(weight, w);
  std::vector<uint8_t> out(static_cast<size_t>(encoder.format->storage_bytes(rows, cols)));
  const auto for_rows = [&](const auto& body) {
    parallel_for(ops.threads(), ceil_div(rows, kRoundedRows), [&](int64_t task, int) {
      const int64_t last = std::min(rows, (task + 1) * kRoundedRows);
      for (int64_t row = task * kRoundedRows; row < last; ++row) body(row);
    });
  };
  if (u.empty()) {
    for_rows([&](int64_t row) {
      encoder.encode(w.data<float>() + row * cols, cols, out.data() + row * row_bytes);
    });
  } else {
    const std::vector<float> costs = column_costs(u, cols);
    const std::vector<double> weights(costs.begin(), costs.end());
    const OwnedTensor errors(memory, Purpose::workspace, DType::f32, {rows, kColumns});
    const AddRowKernel add_row = ops.isa() == IsaLevel::v3 ? v3::kAddRow : v4::kAddRow;
    for (int64_t begin = 0; begin < cols; begin += kColumns) {
      const int64_t end = std::min(cols, begin + kColumns);
      const Columns columns{encoder, add_row, w, u, errors.view(), weights, begin, end, out.data()};
      for_rows([&](int64_t row) { columns.round(row); });
      if (end == cols) break;
      ops.gemm(errors.view().columns(0, end - begin), Transpose::no,
               u.rows(begin, end).columns(end, cols), Transpose::no, w.columns(end, cols),
               Accumulate::yes);
    }
  }
  const Tensor bytes(out.data(), DType::u8, {std::ssize(out)});
  encoder.format->decode(ops, {bytes, rows, cols}, 0, rows, w);
  const float* values = w.data<float>();
  if (!std::all_of(values, values + w.size(), [](float value) { return std::isfinite(value); })) {
    fail_beyond_f16(weight, encoder.format->name());
  }
  return out;
}

}  // namespace jackscrew
