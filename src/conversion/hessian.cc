#include "conversion/hessian.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"

namespace jackscrew {

namespace {

// Columns that storage formats code together, or give a scale of their own: GGUF's groups and
// blocks, NF4's blocks, GGUF's super-blocks.
constexpr int32_t kBlockSizes[] = {16, 32, 64, 256};

// Block width of the triangular factorisation: wide enough for gemm(), narrow enough that the work
// in double within a block is a small share of the whole.
constexpr int64_t kFactorBlock = 128;
// Columns of H that are summed at a time: only the lower half of its blocks is computed. Twice the
// width would compute an eighth more; half the width gains nothing in wide layers.
constexpr int64_t kSumBlock = 128;
// Columns of H that an error is computed with at a time: in wide layers, half the work is saved by
// its symmetry. Wide enough for gemm().
constexpr int64_t kErrorBlock = 512;

Tensor part(const Tensor& matrix, int64_t row, int64_t end_row, int64_t col, int64_t end_col) {
  return matrix.rows(row, end_row).columns(col, end_col);
}

// Replaces a block by its upper factor R (block = R Rᵀ), in double; returns false where the block
// is not positive definite.
bool factor_block(std::vector<double>& a, int64_t n) {
  const auto at = [&](int64_t i, int64_t j) -> double& {
    return a[static_cast<size_t>(i * n + j)];
  };
  for (int64_t j = n - 1; j >= 0; --j) {
    double pivot = at(j, j);
    for (int64_t k = j + 1; k < n; ++k) pivot -= at(j, k) * at(j, k);
    if (!(pivot > 0.0) || !std::isfinite(pivot)) return false;
    at(j, j) = std::sqrt(pivot);
    for (int64_t i = 0; i < j; ++i) {
      double sum = at(i, j);
      for (int64_t k = j + 1; k < n; ++k) sum -= at(i, k) * at(j, k);
      at(i, j) = sum / at(j, j);
    }
  }
  return true;
}

// Inverts an upper triangle.
std::vector<double> invert_block(const std::vector<double>& r, int64_t n) {
  std::vector<double> out(r.size());
  const auto at = [n](int64_t i, int64_t j) { return static_cast<size_t>(i * n + j); };
  for (int64_t j = 0; j < n; ++j) {
    out[at(j, j)] = 1.0 / r[at(j, j)];
    for (int64_t i = j - 1; i >= 0; --i) {
      double sum = 0.0;
      for (int64_t k = i + 1; k <= j; ++k) sum += r[at(i, k)] * out[at(k, j)];
      out[at(i, j)] = -sum / r[at(i, i)];
    }
  }
  return out;
}

void negate(const Tensor& from, const Tensor& to) {
  for (int64_t row = 0; row < from.rows(); ++row) {
    const float* source = from.data<float>() + row * from.row_stride();
    float* out = to.data<float>() + row * to.row_stride();
    for (int64_t i = 0; i < from.cols(); ++i) out[i] = -source[i];
  }
}

// Replaces a matrix by its U, in place; returns false where it is not positive definite.
bool factor_inverse(Ops& ops, Memory& memory, const Tensor& h) {
  const int64_t n = h.cols();
  const int64_t blocks = ceil_div(n, kFactorBlock);
  const OwnedTensor inverses(memory, Purpose::workspace, DType::f32,
                             {blocks * kFactorBlock, kFactorBlock});
  const OwnedTensor panels(memory, Purpose::workspace, DType::f32, {2 * n, kFactorBlock});
  const OwnedTensor lines(memory, Purpose::workspace, DType::f32, {kFactorBlock, n});
  const auto block_of = [&](int64_t b) {
    const int64_t size = std::min(n, (b + 1) * kFactorBlock) - b * kFactorBlock;
    return part(inverses.view(), b * kFactorBlock, b * kFactorBlock + size, 0, size);
  };
  // H = R Rᵀ, from the last block to the first.
  for (int64_t b = blocks - 1; b >= 0; --b) {
    const int64_t low = b * kFactorBlock, high = std::min(n, low + kFactorBlock), size = high - low;
    std::vector<double> diagonal(static_cast<size_t>(size * size));
    for (int64_t i = 0; i < size; ++i) {
      const float* row = h.data<float>() + (low + i) * h.row_stride() + low;
      std::copy_n(row, size, diagonal.data() + i * size);
    }
    if (!factor_block(diagonal, size)) return false;
    const std::vector<double> inverse = invert_block(diagonal, size);
    const Tensor kept = block_of(b);
    for (int64_t i = 0; i < size; ++i) {
      for (int64_t j = 0; j < size; ++j) {
        kept.data<float>()[i * kept.row_stride() + j] =
            static_cast<float>(inverse[static_cast<size_t>(i * size + j)]);
      }
    }
    if (low > 0) {
      const Tensor above = part(h, 0, low, low, high);
      const Tensor r = part(panels.view(), 0, low, 0, size);
      const Tensor minus = part(panels.view(), n, n + low, 0, size);
      ops.gemm(above, Transpose::no, kept, Transpose::yes, r, Accumulate::no);
      negate(r, minus);
      ops.copy(above, r);
      ops.gemm(minus, Transpose::no, r, Transpose::yes, part(h, 0, low, 0, low), Accumulate::yes);
    }
    for (int64_t i = low; i < high; ++i)
      std::fill_n(h.data<float>() + i * h.row_stride(), low, 0.f);
  }
  // U = R^-1, in the same order: of row block b, the part right of the diagonal is -U_bb (R_b,rest
  // U_rest).
  for (int64_t b = blocks - 1; b >= 0; --b) {
    const int64_t low = b * kFactorBlock, high = std::min(n, low + kFactorBlock), size = high - low;
    const Tensor kept = block_of(b);
    if (high < n) {
      const Tensor beside = part(h, low, high, high, n);
      const Tensor product = part(lines.view(), 0, size, 0, n - high);
      ops.gemm(beside, Transpose::no, part(h, high, n, high, n), Transpose::no, product,
               Accumulate::no);
      negate(product, product);
      ops.gemm(kept, Transpose::no, product, Transpose::no, beside, Accumulate::no);
    }
    ops.copy(part(h, low, high, low, high), kept);
  }
  return true;
}

}  // namespace

int64_t booked_f32(int64_t rows, int64_t cols) {
  return booked_bytes(checked_mul(checked_mul(rows, cols), static_cast<int64_t>(sizeof(float))));
}

Hessian::Hessian(Memory& memory, int64_t cols)
    : sum_(memory, Purpose::workspace, DType::f32, {cols, cols}) {}

void Hessian::add(Ops& ops, const Tensor& x) {
  for (int64_t begin = 0; begin < cols(); begin += kSumBlock) {
    const int64_t end = std::min(cols(), begin + kSumBlock);
    ops.gemm(x.columns(begin, end), Transpose::yes, x.columns(0, end), Transpose::no,
             part(sum_.view(), begin, end, 0, end), Accumulate::yes);
  }
  tokens_ += x.rows();
}

void Hessian::finish(const char* where) {
  float* h = sum_.view().data<float>();
  const int64_t n = cols();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) h[j * n + i] = h[i * n + j];
    if (!std::isfinite(h[i * n + i])) {
      throw Error(
          ErrorKind::non_finite,
          fmt::format("the inputs of {} are not finite for the calibration text", where),
          "the model's weights are damaged or, with another product than f32, too large for it");
    }
  }
}

std::vector<int32_t> Hessian::order(ColumnOrder order) const {
  std::vector<int32_t> columns;
  if (order == ColumnOrder::own) return columns;
  columns.resize(static_cast<size_t>(cols()));
  std::iota(columns.begin(), columns.end(), 0);
  const float* h = sum_.view().data<float>();
  const auto square = [&](int32_t column) { return h[column * (cols() + 1)]; };
  std::ranges::stable_sort(columns, std::greater<>(), square);
  if (order == ColumnOrder::by_activation) return columns;
  // From the smallest blocks to the largest: a sort that is stable leaves the order within.
  for (const int32_t size : kBlockSizes) {
    if (cols() % size != 0) break;
    std::vector<double> sums(static_cast<size_t>(cols() / size));
    for (const int32_t column : columns) {
      sums[static_cast<size_t>(column / size)] += static_cast<double>(square(column));
    }
    std::ranges::stable_sort(columns, [&](int32_t a, int32_t b) {
      const double of_a = sums[static_cast<size_t>(a / size)];
      const double of_b = sums[static_cast<size_t>(b / size)];
      return of_a != of_b ? of_a > of_b : a / size < b / size;
    });
  }
  return columns;
}

double output_error(Ops& ops, const Tensor& d, const Tensor& h, const Tensor& product) {
  const int64_t rows = d.rows(), cols = d.cols();
  std::vector<double> sums(static_cast<size_t>(rows));
  // Adds `times` the sum of the elementwise products of columns of d and what stands there.
  const auto add = [&](int64_t begin, int64_t end, double times) {
    parallel_for(ops.threads(), rows, [&](int64_t row, int) {
      const float* a = d.data<float>() + row * d.row_stride();
      const float* b = product.data<float>() + row * product.row_stride();
      double sum = 0.0;
      for (int64_t i = begin; i < end; ++i) {
        sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
      }
      sums[static_cast<size_t>(row)] += times * sum;
    });
  };
  // H is symmetric: of its blocks only those on the diagonal and below it are multiplied.
  for (int64_t begin = 0; begin < cols; begin += kErrorBlock) {
    const int64_t end = std::min(cols, begin + kErrorBlock);
    const Tensor to = product.columns(begin, end);
    if (end < cols) {
      ops.gemm(d.columns(end, cols), Transpose::no, part(h, end, cols, begin, end), Transpose::no,
               to, Accumulate::no);
      add(begin, end, 2.0);
    }
    ops.gemm(d.columns(begin, end), Transpose::no, part(h, begin, end, begin, end), Transpose::no,
             to, Accumulate::no);
    add(begin, end, 1.0);
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

InverseFactor inverse_factor(Ops& ops, Memory& memory, const Tensor& h,
                             const std::vector<int32_t>& order, double damping) {
  const int64_t n = h.cols();
  const float* from = h.data<float>();
  double mean = 0.0;
  for (int64_t i = 0; i < n; ++i) mean += static_cast<double>(from[i * (n + 1)]);
  mean /= static_cast<double>(n);
  // No input at all: any damping will do.
  if (mean == 0.0) mean = 1.0;
  InverseFactor out{OwnedTensor(memory, Purpose::workspace, DType::f32, {n, n}), damping};
  float* to = out.u.view().data<float>();
  for (; out.damping <= 1.0; out.damping *= 10.0) {
    parallel_for(ops.threads(), n, [&](int64_t i, int) {
      const int64_t row = order.empty() ? i : order[static_cast<size_t>(i)];
      for (int64_t j = 0; j < n; ++j) {
        to[i * n + j] = from[row * n + (order.empty() ? j : order[static_cast<size_t>(j)])];
      }
      to[i * (n + 1)] += static_cast<float>(out.damping * mean);
    });
    if (factor_inverse(ops, memory, out.u.view())) return out;
  }
  throw Error(ErrorKind::non_finite, "the inputs of a layer have no usable covariance",
              "calibrate on more text, or on other text");
}

int64_t inverse_factor_bytes(int64_t cols) {
  const int64_t inverses = booked_f32(round_up(cols, kFactorBlock), kFactorBlock);
  return inverses + booked_f32(2 * cols, kFactorBlock) + booked_f32(kFactorBlock, cols);
}

}  // namespace jackscrew
