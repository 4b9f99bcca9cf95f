#include "products/int4.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "products/int4.rows.h"
#include "products/int8.h"
#include "products/int8_gradient.h"
#include "products/rounded.h"
#include "products/weight_panels.h"

namespace jackscrew {

namespace {

// The largest 4-bit code of dy: symmetric, so that rounding has no bias.
constexpr int32_t kInt4Gradient = 7;

class Int4Product : public RoundedProduct {
 public:
  explicit Int4Product(const Int4Options& options)
      : name_(options.name), wide_(options.wide), block_(options.block) {}

  const char* name() const override { return name_; }
  DType operand_dtype() const override { return DType::bf16; }

  const Product& product_of(const WeightSpec& weight) const override {
    return weight.is_block_matrix() ? static_cast<const Product&>(*this) : *head_;
  }

  void check(std::span<const WeightSpec> weights,
             const std::vector<std::string>& excluded) const override {
    check_hadamard_block(name_, block_, kHadamardBlock, weights, excluded);
  }

  Operand prepare(Context& context, const Tensor& x) const override {
    if (is_single_token(x)) return {x};
    const Int8Rows to = take_groups(context.scratch, x.rows(), x.cols());
    quantize(context, x, to, wide_ ? context.ops.int8_limit() : 0);
    return {x, to};
  }

  Gradient backward(Context& context, const Operand& a, const Tensor& dy,
                    const LinearUse& use) const override {
    Gradient g(context, *this, use.weight);
    g.x = a.x;
    g.x_rows = a.rows;
    g.dy = dy;
    return g;
  }

 private:
  void rounded_forward(Context& context, const Operand& a, const LinearUse& use, const Tensor& y,
                       Accumulate accumulate) const override {
    for_panels(context, use.weight, [&](const Int8Rows& panel, int64_t begin, int64_t end) {
      context.ops.gemm_int8(a.rows, panel, Transpose::yes, y.columns(begin, end), accumulate,
                            context.scratch);
    });
  }

  void rounded_dx(const Gradient& g, const Tensor& dx, Accumulate accumulate) const override {
    Context& context = g.context();
    const Arena::Frame frame(context.scratch);
    const Tensor rotated = context.scratch.tensor(DType::f32, {dx.rows(), dx.cols()});
    Accumulate now = Accumulate::no;
    for_panels(context, g.weight(), [&](const Int8Rows& panel, int64_t begin, int64_t end) {
      const Arena::Frame panel_frame(context.scratch);
      const Int8Rows dy = gradient_of_rows(g, panel.scales, begin, end, gradient_limit(context));
      context.ops.gemm_int8(dy, {panel.codes, {}}, Transpose::no, rotated, now, context.scratch);
      now = Accumulate::yes;
    });
    rotate_back(context, rotated, wide_ ? Tensor() : g.x, dx, accumulate);
  }

  void rounded_dw(const Gradient& g, const Tensor& d) const override {
    Context& context = g.context();
    const Weight& weight = g.weight();
    const Arena::Frame frame(context.scratch);
    const Int8Rows dy = gradient_of_columns(g, g.x_rows.scales, gradient_limit(context));
    // x is packed anew for every panel, which is little beside the products of its rows.
    const int64_t step = panel_rows_of(weight, context.ops.panel_bytes(), dtype_size(DType::f32));
    const Tensor panel = context.scratch.tensor(DType::f32, {step, weight.cols()});
    const bool is_stored = !stored_codes(weight).codes.empty();
    const Tensor decoded = is_stored ? Tensor() : decoded_panel(context, weight, step);
    for (int64_t begin = 0; begin < weight.rows(); begin += step) {
      const int64_t end = std::min(weight.rows(), begin + step);
      const Tensor rotated = panel.rows(0, end - begin);
      context.ops.gemm_int8({dy.codes.rows(begin, end), dy.scales.rows(begin, end)},
                            {g.x_rows.codes, {}}, Transpose::no, rotated, Accumulate::no,
                            context.scratch);
      // Codes that are multiplied as they are stored were not cut off here.
      const Tensor from = is_stored ? Tensor() : values_of(context, weight, begin, end, decoded);
      rotate_back(context, rotated, from, d.rows(begin, end), Accumulate::yes);
    }
  }

  int64_t block_of(int64_t width) const {
    return block_ > 0 ? block_ : largest_hadamard_block(width);
  }

  // The codes of a weight that is stored in just these; else empty.
  Int4Rows stored_codes(const Weight& weight) const {
    const Int4Rows stored = weight.as_int4_rows();
    return stored.block == block_of(weight.cols()) ? stored : Int4Rows{};
  }

  int32_t gradient_limit(const Context& context) const {
    return wide_ ? context.ops.int8_limit() : kInt4Gradient;
  }

  // limit: see QuantizeRotated. to.scales may have any number of columns.
  void quantize(const Context& context, const Tensor& from, const Int8Rows& to,
                int32_t limit) const {
    const int64_t block = block_of(from.cols());
    context.ops.launch(QuantizeRotated{from.data<float>(), to.codes.data<int8_t>(),
                                       to.scales.data<float>(), from.cols(), from.row_stride(),
                                       block, div_exact(to.scales.size(), from.rows()), limit},
                       from.rows());
  }

  // See RotateBack; `from` may be empty.
  void rotate_back(const Context& context, const Tensor& gradient, const Tensor& from,
                   const Tensor& to, Accumulate accumulate) const {
    const int64_t block = block_of(gradient.cols());
    context.ops.launch(
        RotateBack{gradient.data<float>(), from.empty() ? nullptr : from.data<float>(),
                   to.data<float>(), gradient.cols(), from.row_stride(), to.row_stride(), block,
                   accumulate == Accumulate::yes},
        gradient.rows());
  }

  // Calls body(panel, begin, end) over all rows of the weight; a panel is rows of 4-bit codes with
  // scales [rows].
  template <class Body>
  void for_panels(Context& context, const Weight& weight, const Body& body) const {
    const Arena::Frame frame(context.scratch);
    const int64_t cols = weight.cols();
    // Half of what it may be: as many rows as fit a cache beside x.
    const int64_t step = panel_rows_of(weight, context.ops.panel_bytes() / 2, 1);
    const Tensor codes = context.scratch.tensor(DType::i8, {step, cols});
    if (const Int4Rows stored = stored_codes(weight); !stored.codes.empty()) {
      for (int64_t begin = 0; begin < weight.rows(); begin += step) {
        const int64_t end = std::min(weight.rows(), begin + step);
        const int64_t count = end - begin;
        const Tensor nibbles = stored.codes.rows(begin, end);
        context.ops.launch(
            UnpackInt4{nibbles.data<uint8_t>(), codes.data<int8_t>(), nibbles.cols()}, count);
        body({codes.rows(0, count), stored.scales.rows(begin, end).reshaped({count})}, begin, end);
      }
      return;
    }
    const Int8Rows panel{codes, context.scratch.tensor(DType::f32, {step, 1})};
    const int64_t part = std::min(step, encode_panel_rows(cols));
    const Tensor decoded = decoded_panel(context, weight, part);
    for (int64_t begin = 0; begin < weight.rows(); begin += step) {
      const int64_t end = std::min(weight.rows(), begin + step);
      for (int64_t from = begin; from < end; from += part) {
        const int64_t to = std::min(end, from + part);
        quantize(context, values_of(context, weight, from, to, decoded),
                 {panel.codes.rows(from - begin, to - begin),
                  panel.scales.rows(from - begin, to - begin)},
                 0);
      }
      const Tensor scales = panel.scales.rows(0, end - begin);
      body({panel.codes.rows(0, end - begin), scales.reshaped({end - begin})}, begin, end);
    }
  }

  const char* name_;
  bool wide_;
  int64_t block_;
  std::unique_ptr<const Product> head_ = make_int8_product({.weight_gradient = true});
};

}  // namespace

std::unique_ptr<const Product> make_int4_product(const Int4Options& options) {
  return std::make_unique<Int4Product>(options);
}

void check_hadamard_block(const char* product, int64_t block, int64_t most,
                          std::span<const WeightSpec> weights, std::vector<std::string> excluded) {
  const auto fits = [&](const WeightSpec& weight) {
    return block == 0 || weight.cols % block == 0;
  };
  const auto first = std::ranges::find_if_not(weights, fits);
  if (first == weights.end()) return;
  for (const WeightSpec& weight : weights) {
    const bool is_new = std::ranges::find(excluded, weight.module) == excluded.end();
    if (!fits(weight) && is_new) excluded.push_back(weight.module);
  }
  // Where no layer is left, it would be another product.
  const std::string others =
      std::ranges::any_of(weights, fits)
          ? fmt::format("; or leave such layers out: product_exclude={}", fmt::join(excluded, ","))
          : "";
  throw Error(ErrorKind::usage,
              fmt::format("{}_block={}, but {} is {} wide, which that does not divide", product,
                          block, first->name, first->cols),
              fmt::format("{}_block=auto takes the largest power of two up to {} that divides a "
                          "width, here {}{}",
                          product, most, largest_hadamard_block(first->cols, most), others));
}

}  // namespace jackscrew
