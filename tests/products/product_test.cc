// Products and gradient operators against plain arithmetic in double, for every kind of storage.
#include "products/product.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/cpu/cpu_ops.h"
#include "quant/plain.h"
#include "tests/products/reference.h"
#include "tests/support/errors.h"
#include "tests/support/products.h"
#include "tests/support/rounded_token.h"
#include "tests/support/small_panels.h"
#include "tests/support/test_ops.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

// Two operands rounded to bf16 (7 bits of fraction, so each is off by 2^-8 of itself at most), and
// the product of both errors.
constexpr double kBf16 = 0x1p-7 + 0x1p-16 + kF32;
// Three operands and the product of two of them, each rounded to bf16.
constexpr double kThinBf16 = (1 + 0x1p-8) * (1 + 0x1p-8) * (1 + 0x1p-8) * (1 + 0x1p-8) - 1 + kF32;

struct Stored {
  const char* format;
  int64_t cols;  // odd where the format's blocks allow it
};
constexpr Stored kStored[] = {
    {"f32", 45},          {"bf16", 45},         {"f16", 45},      {"q8_0", 96},
    {"q4_0", 96},         {"q4_1", 96},         {"q5_0", 96},     {"q5_1", 96},
    {"q2_k", 512},        {"q3_k", 512},        {"q4_k", 512},    {"q5_k", 512},
    {"q6_k", 512},        {"iq1_s", 512},       {"iq1_m", 512},   {"iq2_xxs", 512},
    {"iq2_xs", 512},      {"iq2_s", 512},       {"iq3_xxs", 512}, {"iq3_s", 512},
    {"iq4_nl", 96},       {"iq4_xs", 512},      {"tq1_0", 512},   {"tq2_0", 512},
    {"mxfp4", 96},        {"nvfp4", 192},       {"int8", 333},    {"int8_row", 45},
    {"int8_affine", 45},  {"int8_dynamic", 45}, {"nf4", 45},      {"nf4_double", 45},
    {"int4_hadamard", 46}};

class ProductTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (is_bf16() && !ops_->has_bf16()) {
      GTEST_SKIP() << "the level " << isa_name(test_isa()) << " has no bf16 products";
    }
    product_ = make_product(GetParam(), *ops_);
  }

  bool is_bf16() const { return std::string(GetParam()) == "bf16"; }
  const Product& product() const { return *product_; }
  Context context() { return {*ops_, scratch_, nullptr, true}; }

  Weight make_weight(const char* name, int64_t rows, int64_t cols) {
    const Format& format = find_format(name);
    Weight weight(memory_, {"the.weight", rows, cols}, format);
    if (format.can_encode()) {
      Matrix values = random_matrix(rows, cols, 1);
      weight.publish(*ops_, values.view(), {}, scratch_);
      return weight;
    }
    std::mt19937 random(2);
    const Tensor storage = weight.storage().bytes;
    auto* bytes = storage.data<uint8_t>();
    // Without this bit no f16 is infinite, wherever a block has its scales.
    for (int64_t i = 0; i < storage.size(); ++i) bytes[i] = random() & 0xBF;
    return weight;
  }

  Matrix values_of(const Weight& weight) {
    Matrix out(weight.rows(), weight.cols());
    weight.decode(*ops_, 0, weight.rows(), out.view());
    return out;
  }

  // `actual` is start + a b in the product's arithmetic: in bf16 exact for rounded operands, and
  // within the bound of rounding for the operands as they are.
  void expect_product(const Matrix& actual, const Matrix& a, const Matrix& b, const Matrix* start,
                      const std::string& what) const {
    if (!is_bf16()) {
      EXPECT_LE(error_of(actual, multiply(a, b, start)), kF32) << what;
      return;
    }
    const Exact rounded = multiply(a.rounded_to_bf16(), b.rounded_to_bf16(), start);
    EXPECT_LE(error_of(actual, rounded), kF32) << what;
    EXPECT_LE(error_of(actual, multiply(a, b, start)), kBf16) << what;
  }

  // The product of a single token in bf16 with a weight as it is stored: the token alone is
  // rounded, and by formats that multiply codes once more.
  void expect_product_as_stored(const Matrix& actual, const Matrix& x, const Matrix& w,
                                const Matrix* start, const std::string& what) const {
    const Matrix once = x.rounded_to_bf16();
    Matrix twice = once;
    twice.values = rounded_token(once.values, {32767});
    EXPECT_LE(std::min(error_of(actual, multiply(once, w, start)),
                       error_of(actual, multiply(twice, w, start))),
              kF32)
        << what;
  }

  // Every product of a weight with `tokens` random inputs.
  void check_all(const LinearUse& use, int64_t tokens, const std::string& name) {
    const Weight& weight = use.weight;
    const Matrix w = values_of(weight);
    Matrix x = random_matrix(tokens, weight.cols(), 3);
    if (tokens == 1) x.values = rounded_token(x.values, {32767});
    Matrix dy = random_matrix(tokens, weight.rows(), 4);
    Context run = context();
    const Arena::Frame frame(scratch_);
    const Operand operand = product().prepare(run, x.view());
    const Gradient g = product().backward(run, operand, dy.view(), use);
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      const bool adds = accumulate == Accumulate::yes;
      const std::string what = name + (adds ? " added" : " written");
      const Matrix y_start = random_matrix(tokens, weight.rows(), 5);
      Matrix y = y_start;
      product().forward(run, operand, use, y.view(), accumulate);
      const Matrix* begun = adds ? &y_start : nullptr;
      if (is_bf16() && tokens == 1 && weight.format().name() != std::string("bf16")) {
        expect_product_as_stored(y, x, w.transposed(), begun, what + " y");
      } else {
        expect_product(y, x, w.transposed(), begun, what + " y");
      }
      const Matrix dx_start = random_matrix(tokens, weight.cols(), 6);
      Matrix dx = dx_start;
      g.add_dx(dx.view(), accumulate);
      expect_product(dx, dy, w, adds ? &dx_start : nullptr, what + " dx");
    }
    const Matrix start = random_matrix(weight.rows(), weight.cols(), 7);
    Matrix d = start;
    g.add_dw(d.view());
    expect_product(d, dy.transposed(), x, &start, name + " dw");
    check_projections(g, x, dy, name);
    check_scale(g, w, x, dy, name);
  }

  // The row sums of G ∘ W; in bf16 three operands of each term are rounded.
  void check_scale(const Gradient& g, const Matrix& w, const Matrix& x, const Matrix& dy,
                   const std::string& name) {
    const Exact gradient = multiply(dy.transposed(), x);
    const Matrix start = random_matrix(1, w.rows, 12);
    Exact wanted;
    for (int64_t row = 0; row < w.rows; ++row) {
      double value = static_cast<double>(start.at(0, row));
      double magnitude = std::abs(value);
      for (int64_t col = 0; col < w.cols; ++col) {
        const auto at = static_cast<size_t>(row * w.cols + col);
        value += gradient.value[at] * static_cast<double>(w.at(row, col));
        magnitude += gradient.magnitude[at] * std::abs(static_cast<double>(w.at(row, col)));
      }
      wanted.value.push_back(value);
      wanted.magnitude.push_back(magnitude);
    }
    Matrix d = start;
    g.add_scale(d.view().reshaped({w.rows}));
    EXPECT_LE(error_of(d, wanted), is_bf16() ? kThinBf16 : kF32) << name << " scale";
  }

  void check_projections(const Gradient& g, const Matrix& x, const Matrix& dy,
                         const std::string& name) {
    const int64_t rank = 5;
    Matrix full(dy.cols, x.cols), magnitudes(dy.cols, x.cols);
    const Exact gradient = multiply(dy.transposed(), x);
    for (size_t i = 0; i < full.values.size(); ++i) {
      full.values[i] = static_cast<float>(gradient.value[i]);
      magnitudes.values[i] = static_cast<float>(gradient.magnitude[i]);
    }
    // In bf16 errors are of the terms of both sums.
    const auto expect = [&](const Matrix& actual, const Matrix& a, const Matrix& b,
                            const Matrix& of_terms_a, const Matrix& of_terms_b, const Matrix& start,
                            const char* what) {
      Exact wanted = multiply(a, b, &start);
      if (is_bf16()) wanted.magnitude = multiply(of_terms_a, of_terms_b, &start).magnitude;
      EXPECT_LE(error_of(actual, wanted), is_bf16() ? kThinBf16 : kF32) << name << what;
    };
    Matrix p = random_matrix(dy.cols, rank, 8);
    const Matrix left_start = random_matrix(x.cols, rank, 9);
    Matrix left = left_start;
    g.add_left(p.view(), left.view());
    expect(left, full.transposed(), p, magnitudes.transposed(), p, left_start, " left");
    Matrix q = random_matrix(x.cols, rank, 10);
    const Matrix right_start = random_matrix(dy.cols, rank, 11);
    Matrix right = right_start;
    g.add_right(q.view(), right.view());
    expect(right, full, q, magnitudes, q, right_start, " right");
  }

  std::unique_ptr<Ops> ops_ = std::make_unique<SmallPanelOps>(make_test_ops());
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, int64_t{64} << 20};
  std::unique_ptr<const Product> product_;
};

TEST_P(ProductTest, EveryStorage) {
  for (const Stored& stored : kStored) {
    check_all(make_weight(stored.format, 37, stored.cols), 19, stored.format);
    check_all(make_weight(stored.format, 37, stored.cols), 1, stored.format);
    check_all(make_weight(stored.format, 1, stored.cols), 1, stored.format);
  }
  EXPECT_EQ(scratch_.used(), 0);
}

TEST_P(ProductTest, WeightOfSeveralPanels) {
  const int64_t rows = 101;
  const int64_t cols = 1024;
  ASSERT_LT(panel_rows(cols, is_bf16() ? 2 : 4, ops_->panel_bytes()), rows);
  check_all(make_weight("q8_0", rows, cols), 3, "q8_0 in panels");
  // The decoded weight never exists as a whole.
  EXPECT_LT(scratch_.high_water(), rows * cols * (is_bf16() ? 2 : 4));
}

TEST_P(ProductTest, WeightThatWasMadeReady) {
  const Weight weight = make_weight("q8_0", 101, 1024);
  const int64_t bytes = weight.size() * (is_bf16() ? 2 : 4);
  Context run = context();
  const Arena::Frame frame(scratch_);
  EXPECT_TRUE(product().ready(run, weight, bytes - 1).empty());
  EXPECT_EQ(scratch_.used(), 0);
  EXPECT_TRUE(product().ready(run, make_weight(is_bf16() ? "bf16" : "f32", 7, 45), bytes).empty());
  LinearUse use(weight);
  use.ready = product().ready(run, weight, bytes);
  ASSERT_EQ(use.ready.bytes(), bytes);
  check_all(use, 3, "q8_0 made ready");
  // Nothing else is read.
  run.ops.zero(use.ready);
  Matrix x = random_matrix(3, 1024, 3);
  Matrix y = random_matrix(3, 101, 5);
  product().forward(run, product().prepare(run, x.view()), use, y.view(), Accumulate::no);
  EXPECT_EQ(y.values, std::vector<float>(y.values.size()));
}

// What lies between two products is rounded once, a sum over several panels among it.
TEST_P(ProductTest, ActivationsOfItsOwnType) {
  const DType activation = product().activation_dtype();
  for (const auto& [format, rows, cols] :
       {std::tuple{"bf16", 37, 45}, {"q8_0", 37, 96}, {"q8_0", 101, 1024}}) {
    const Weight weight = make_weight(format, rows, cols);
    const int64_t tokens = 3;
    Matrix x = random_matrix(tokens, cols, 3);
    Matrix dy = random_matrix(tokens, rows, 4);
    Context run = context();
    const Arena::Frame frame(scratch_);
    const Operand operand = product().prepare(run, x.view());
    EXPECT_EQ(product().prepare(run, operand.x).x.raw(), operand.x.raw());  // as it is
    const Gradient g = product().backward(run, operand, dy.view(), weight);
    EXPECT_EQ(g.dy.dtype(), activation);
    const auto expect_rounded = [&, format = format](const Tensor& rounded, const Matrix& exact) {
      Matrix got(exact.rows, exact.cols);
      run.ops.copy(got.view(), converted(run, rounded, DType::f32));
      const float half_unit = is_bf16() ? 0x1p-8f : 0.0f;  // in the last place
      float excess = 0.0f;
      float largest = 0.0f;
      for (size_t i = 0; i < exact.values.size(); ++i) {
        const float value = std::abs(exact.values[i]);
        excess = worse(excess, std::abs(got.values[i] - exact.values[i]) - value * half_unit);
        largest = std::max(largest, value);
      }
      // The sums of f32 differ, too: they are cut otherwise.
      EXPECT_LE(excess, is_bf16() ? 1e-6f * largest : 0.0f) << format;
    };
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      Matrix y_start = random_matrix(tokens, rows, 5).rounded_to_bf16();
      const Tensor y = scratch_.tensor(activation, {tokens, rows});
      run.ops.copy(y, converted(run, y_start.view(), activation));
      product().forward(run, operand, weight, y, accumulate);
      product().forward(run, operand, weight, y_start.view(), accumulate);
      expect_rounded(y, y_start);
      Matrix dx_start = random_matrix(tokens, cols, 6).rounded_to_bf16();
      const Tensor dx = scratch_.tensor(activation, {tokens, cols});
      run.ops.copy(dx, converted(run, dx_start.view(), activation));
      g.add_dx(dx, accumulate);
      g.add_dx(dx_start.view(), accumulate);
      expect_rounded(dx, dx_start);
    }
  }
}

TEST_P(ProductTest, ThreadsDoNotChangeBits) {
  const Weight weight = make_weight("q8_0", 300, 96);
  Matrix x = random_matrix(70, 96, 12);
  Matrix dy = random_matrix(70, 300, 13);
  std::vector<float> first;
  for (const int threads : {1, 2, 3}) {
    const auto ops = make_test_ops(threads);
    Context run{*ops, scratch_, nullptr, true};
    const Arena::Frame frame(scratch_);
    const Operand operand = product().prepare(run, x.view());
    const Gradient g = product().backward(run, operand, dy.view(), weight);
    Matrix y(70, 300), dx(70, 96), d(300, 96);
    product().forward(run, operand, weight, y.view(), Accumulate::no);
    g.add_dx(dx.view(), Accumulate::no);
    g.add_dw(d.view());
    std::vector<float> all = y.values;
    all.insert(all.end(), dx.values.begin(), dx.values.end());
    all.insert(all.end(), d.values.begin(), d.values.end());
    if (first.empty()) first = all;
    EXPECT_EQ(std::memcmp(all.data(), first.data(), all.size() * sizeof(float)), 0) << threads;
  }
}

INSTANTIATE_TEST_SUITE_P(Arithmetic, ProductTest, ::testing::Values("f32", "bf16"),
                         [](const auto& test) { return std::string(test.param); });

// The embedding: rows of the weight, some taken twice.
TEST(GatherContributorTest, AddsRowsOfTheGradient) {
  const auto ops = make_test_ops();
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace, 1 << 20);
  Context run{*ops, scratch, nullptr, true};
  const Weight weight(memory, {"the.embedding", 23, 71}, find_format("f32"));
  std::vector<int32_t> ids = {3, 22, 0, 3, 7, 3, 22};
  const auto tokens = static_cast<int64_t>(ids.size());
  Matrix dy = random_matrix(tokens, 71, 1);
  Gradient g(run, gather_contributor(), weight);
  g.dy = dy.view();
  g.indices = Tensor(ids.data(), DType::i32, {tokens});
  // dW = Sᵀ dy for the selection S [tokens, rows].
  Matrix selection(tokens, 23);
  for (int64_t t = 0; t < tokens; ++t) selection.at(t, ids[static_cast<size_t>(t)]) = 1.0f;

  const Matrix start = random_matrix(23, 71, 2);
  Matrix d = start;
  g.add_dw(d.view());
  EXPECT_LE(error_of(d, multiply(selection.transposed(), dy, &start)), kF32);
}

// Offers no more than every contributor must.
class BareContributor : public Contributor {
  void add_dw(const Gradient&, const Tensor&) const override {}
};

TEST(ContributorTest, RefusalsNameTheWeight) {
  const auto ops = make_test_ops();
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace, 1 << 20);
  Context run{*ops, scratch, nullptr, true};
  const Weight weight(memory, {"the.weight", 3, 4}, find_format("f32"));
  const BareContributor bare;
  const auto refusal = [](const auto& action) {
    return message_of(error_of(ErrorKind::usage, action));
  };
  Matrix any(3, 4);
  const Gradient g(run, bare, weight);
  const Gradient gather(run, gather_contributor(), weight);
  const std::string messages[] = {refusal([&] { g.add_dx(any.view(), Accumulate::no); }),
                                  refusal([&] { g.add_left(any.view(), any.view()); }),
                                  refusal([&] { g.add_right(any.view(), any.view()); }),
                                  refusal([&] { gather.add_dx(any.view(), Accumulate::yes); }),
                                  refusal([&] { gather.add_left(any.view(), any.view()); }),
                                  refusal([&] { gather.add_right(any.view(), any.view()); }),
                                  refusal([&] { gather.add_scale(any.view()); })};
  const char* parts[] = {"its input",     "from the left",  "from the right",      "its input",
                         "from the left", "from the right", "a factor on its rows"};
  for (size_t i = 0; i < std::size(messages); ++i) {
    EXPECT_NE(messages[i].find("the.weight"), std::string::npos) << messages[i];
    EXPECT_NE(messages[i].find(parts[i]), std::string::npos) << messages[i];
  }
}

TEST(FindProductTest, SaysWhatThereIs) {
  const auto below = make_cpu_ops(1, IsaLevel::v3);
  EXPECT_EQ(&find_product("auto"), &find_product("f32"));
  EXPECT_STREQ(make_product("auto", *below)->name(), "f32");
  expect_error(ErrorKind::device, "bf16", [&] { make_product("bf16", *below); });
  expect_error(ErrorKind::usage, "f64", [] { find_product("f64"); });
  const auto ops = make_test_ops();
  for (const ProductEntry& entry : all_products()) {
    EXPECT_EQ(&find_product(entry.name), &entry);
    if (entry.name == std::string_view("bf16") && !ops->has_bf16()) continue;
    EXPECT_STREQ(make_product(entry.name, *ops)->name(), entry.name);
  }
}

}  // namespace
}  // namespace jackscrew
