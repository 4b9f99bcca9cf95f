#include "conversion/storage_rounding.h"

#include <algorithm>
#include <numeric>

#include "conversion/add_row.h"
#include "conversion/column_order.h"
#include "conversion/for_rows.h"
#include "conversion/value_checks.h"
#include "quant/row_encoders.h"

namespace jackscrew {

namespace {

// Columns whose errors reach the rest of the matrix in one product: a multiple of all blocks.
constexpr int64_t kColumns = 256;

// Columns [begin, end) of a matrix, a whole number of blocks.
struct Columns {
  const BlockRounding& rounding;
  AddRowKernel add_row;
  Tensor w;                            // f32 [rows, cols]
  Tensor u;                            // f32 [cols, cols]
  Tensor errors;                       // f32 [rows, kColumns], divided by U_kk
  const std::vector<double>& weights;  // [cols]
  const std::vector<int32_t>& order;   // [cols]
  const std::vector<int32_t>& places;  // [cols], of a column within its block
  int64_t begin, end;
  uint8_t* blocks;  // of the matrix, row by row

  void round(int64_t row) const {
    const int64_t cols = w.cols();
    float* values = w.data<float>() + row * cols;
    float* of_row = errors.data<float>() + row * kColumns;
    int64_t first = begin;  // of a block
    const ElementRounded rounded = [&](int64_t i, float value) {
      const int64_t k = first + i;
      const float* beside = u.data<float>() + k * cols;
      const float error = (value - values[k]) / beside[k];
      add_row(values + k + 1, beside + k + 1, error, end - k - 1);
      of_row[k - begin] = error;
    };
    for (; first < end; first += rounding.columns) {
      const int64_t block = (row * cols + order[static_cast<size_t>(first)]) / rounding.columns;
      rounding.round(values + first, places.data() + first, weights.data() + first, rounded,
                     blocks + block * rounding.bytes);
    }
  }
};

// Returns StorageRounding::error.
double round_columns(Ops& ops, Memory& memory, const Tensor& w, const Tensor& u,
                     const std::vector<int32_t>& order, const BlockRounding& rounding,
                     const Storage& storage) {
  const int64_t rows = w.rows(), cols = w.cols();
  std::vector<int32_t> places;
  places.reserve(order.size());
  for (const int32_t column : order) {
    places.push_back(column % static_cast<int32_t>(rounding.columns));
  }
  // Blocks that the storage does not keep one after another.
  std::vector<uint8_t> apart;
  if (rounding.place != nullptr) {
    apart.resize(
        static_cast<size_t>(checked_mul(rows * (cols / rounding.columns), rounding.bytes)));
  }
  uint8_t* blocks = apart.empty() ? storage.bytes.data<uint8_t>() : apart.data();
  const std::vector<float> costs = column_costs(u, cols);
  const std::vector<double> weights(costs.begin(), costs.end());
  const OwnedTensor errors(memory, Purpose::workspace, DType::f32, {rows, kColumns});
  std::vector<double> row_errors(static_cast<size_t>(rows));
  const AddRowKernel add_row = ops.isa() == IsaLevel::v3 ? v3::kAddRow : v4::kAddRow;
  for (int64_t begin = 0; begin < cols; begin += kColumns) {
    const int64_t end = std::min(cols, begin + kColumns);
    const Columns columns{.rounding = rounding,
                          .add_row = add_row,
                          .w = w,
                          .u = u,
                          .errors = errors.view(),
                          .weights = weights,
                          .order = order,
                          .places = places,
                          .begin = begin,
                          .end = end,
                          .blocks = blocks};
    for_rows(ops.threads(), rows, [&](int64_t row) {
      columns.round(row);
      const float* of_row = errors.view().data<float>() + row * kColumns;
      for (int64_t i = 0; i < end - begin; ++i) {
        const auto off = static_cast<double>(of_row[i]);
        row_errors[static_cast<size_t>(row)] += off * off;
      }
    });
    propagate_errors(ops, errors.view(), u, w, begin, end);
  }
  if (rounding.place != nullptr) rounding.place(apart, storage);
  return std::accumulate(row_errors.begin(), row_errors.end(), 0.0);
}

std::vector<int32_t> own_order(int64_t cols) {
  std::vector<int32_t> order(static_cast<size_t>(cols));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

void round_to_nearest(Ops& ops, const Tensor& w, const Format& format, const Storage& storage) {
  const RowEncoder* encoder = find_row_encoder(format);
  if (encoder == nullptr) {
    Arena scratch;
    const auto source = [&](int64_t begin, int64_t end) { return w.rows(begin, end); };
    return format.encode(ops, source, storage, {}, scratch);
  }
  const int64_t cols = w.cols(), row_bytes = format.row_bytes(cols);
  for_rows(ops.threads(), w.rows(), [&](int64_t row) {
    encoder->encode(w.data<float>() + row * cols, cols,
                    storage.bytes.data<uint8_t>() + row * row_bytes);
  });
}

}  // namespace

StorageRounding round_storage(Ops& ops, Memory& memory, const WeightSpec& weight, const Tensor& w,
                              const Tensor& u, const std::vector<int32_t>& order,
                              const Format& format) {
  check_finite(weight, w);
  const int64_t rows = w.rows(), cols = w.cols();
  const OwnedTensor bytes(memory, Purpose::workspace, DType::u8,
                          {format.storage_bytes(rows, cols)});
  const Storage storage{bytes.view(), rows, cols};
  double error = 0.0;
  const BlockRounding rounding = block_rounding(format);
  if (u.empty() || cols % rounding.columns != 0) {
    reorder_columns(ops, w, order, Reorder::back);
    round_to_nearest(ops, w, format, storage);
  } else {
    error = round_columns(ops, memory, w, u, order.empty() ? own_order(cols) : order, rounding,
                          storage);
  }
  format.decode(ops, storage, 0, rows, w);
  reorder_columns(ops, w, order, Reorder::forth);
  if (!all_finite(w)) fail_beyond_f16(weight, format.name());
  const auto* begin = bytes.view().data<uint8_t>();
  return {{begin, begin + bytes.view().size()}, error};
}

int64_t storage_rounding_bytes(const WeightSpec& weight, const Format& format, bool compensates) {
  const int64_t bytes = booked_bytes(format.storage_bytes(weight.rows, weight.cols));
  const bool by_columns = compensates && weight.cols % block_rounding(format).columns == 0;
  return bytes + (by_columns ? booked_f32(weight.rows, kColumns) : 0);
}

int64_t storage_held_bytes(const WeightSpec& weight, const Format& format) {
  // The orders, costs and weights of columns, and the errors of rows.
  constexpr int64_t kColumn = 2 * sizeof(int32_t) + sizeof(float) + sizeof(double);
  const int64_t rounding = weight.cols * kColumn + weight.rows * int64_t{sizeof(double)};
  // Plus one copy of the storage: blocks not yet reordered, later the result.
  return checked_add(format.storage_bytes(weight.rows, weight.cols), rounding);
}

}  // namespace jackscrew
