// Products of bytes against sums in 64-bit integers. Sums within a group must be exact: all that is
// left to rounding are the scales.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "kernels/ops.h"
#include "kernels/plan/plan_ops.h"
#include "tests/kernels/kernel_data.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

// Codes whose rows lie `gap` bytes further apart than they are long.
class Codes {
 public:
  Codes(int64_t rows, int64_t cols, int64_t gap)
      : rows_(rows), cols_(cols), stride_(cols + gap), data_(at(rows * stride_), 0x55) {}

  static Codes random(int64_t rows, int64_t cols, int64_t gap, int32_t lowest, int32_t highest,
                      uint32_t seed) {
    const RandomStream stream = RandomStream::make(seed, RandomPurpose::init, 0, 1);
    Codes out(rows, cols, gap);
    const auto count = static_cast<uint32_t>(highest - lowest + 1);
    out.set([&](int64_t r, int64_t c) {
      const uint32_t bits = stream.bits(static_cast<uint64_t>(r * cols + c));
      return lowest + static_cast<int32_t>(bits % count);
    });
    return out;
  }

  template <class Value>
  void set(const Value& value) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) {
        data_[at(r * stride_ + c)] = static_cast<int8_t>(value(r, c));
      }
    }
  }
  int64_t value(int64_t r, int64_t c) const { return data_[at(r * stride_ + c)]; }
  Tensor view() { return Tensor(data_.data(), DType::i8, {rows_, stride_}).columns(0, cols_); }

 private:
  int64_t rows_, cols_, stride_;
  std::vector<int8_t> data_;
};

struct Case {
  int64_t m, n, k;
  bool transpose_b, accumulate;
  int64_t gap = 0;
  bool b_scaled = true;  // always, where b is transposed

  int64_t groups() const { return ceil_div(k, kInt8Group); }
  std::string describe() const {
    return fmt::format("{} x {} x {} {} {} gap {}{}", m, n, k, transpose_b ? "nt" : "nn",
                       accumulate ? "added" : "written", gap, b_scaled ? "" : " b unscaled");
  }
};

// A case with its operands.
struct Operands {
  Case test;
  Codes a, b;
  std::vector<float> a_scales, b_scales;

  Operands(const Case& c, Codes left, Codes right)
      : test(c),
        a(std::move(left)),
        b(std::move(right)),
        a_scales(at(c.m * c.groups()), 1.0f),
        b_scales(at(c.n), 1.0f) {}

  static Operands random(const Case& c, int32_t limit) {
    const bool tb = c.transpose_b;
    Operands out(c, Codes::random(c.m, c.k, c.gap, -limit, limit, 1),
                 Codes::random(tb ? c.n : c.k, tb ? c.k : c.n, c.gap, -128, 127, 2));
    out.a_scales = random_floats(c.m * c.groups(), 3);
    out.b_scales = random_floats(c.n, 4);
    return out;
  }

  Int8Rows left(int64_t begin, int64_t end) {
    const Tensor scales(a_scales.data(), DType::f32, {test.m, test.groups()});
    return {a.view().rows(begin, end), scales.rows(begin, end)};
  }
  Int8Rows right() {
    if (!test.b_scaled) return {b.view(), {}};
    return {b.view(), Tensor(b_scales.data(), DType::f32, {test.n})};
  }
  // Exact, and the same of the terms' magnitudes.
  std::pair<double, double> element(int64_t i, int64_t j) const {
    double sum = 0.0;
    double magnitude = 0.0;
    for (int64_t g = 0; g < test.groups(); ++g) {
      int64_t of_group = 0;
      for (int64_t p = g * kInt8Group; p < std::min(test.k, (g + 1) * kInt8Group); ++p) {
        of_group += a.value(i, p) * (test.transpose_b ? b.value(j, p) : b.value(p, j));
      }
      const double scale = static_cast<double>(a_scales[at(i * test.groups() + g)]) *
                           (test.b_scaled ? static_cast<double>(b_scales[at(j)]) : 1.0);
      sum += scale * static_cast<double>(of_group);
      magnitude += std::abs(scale * static_cast<double>(of_group));
    }
    return {sum, magnitude};
  }
};

class GemmInt8 : public ::testing::Test {
 protected:
  int32_t limit() const { return ops_->int8_limit(); }
  Arena& scratch() { return scratch_; }

  void multiply(Ops& ops, Operands& operands, const Tensor& c) {
    ops.gemm_int8(operands.left(0, operands.test.m), operands.right(),
                  Transpose{operands.test.transpose_b}, c, Accumulate{operands.test.accumulate},
                  scratch_);
    EXPECT_EQ(scratch_.used(), 0);
  }

  // `tolerance` is in units of the magnitudes that are added.
  void check(Operands& operands, double tolerance) {
    const Case& test = operands.test;
    auto c = Strided<float>::random(test.m, test.n, test.gap, 5);
    const std::vector<float> start =
        test.accumulate ? c.values() : std::vector<float>(at(test.m * test.n));
    multiply(*ops_, operands, c.view());
    EXPECT_TRUE(c.gaps_intact()) << test.describe();
    const std::vector<float> got = c.values();
    for (int64_t i = 0; i < test.m; ++i) {
      for (int64_t j = 0; j < test.n; ++j) {
        const auto before = static_cast<double>(start[at(i * test.n + j)]);
        const auto [sum, magnitude] = operands.element(i, j);
        const double error = std::abs(static_cast<double>(got[at(i * test.n + j)]) - before - sum);
        ASSERT_LE(error, tolerance * (std::abs(before) + magnitude))
            << test.describe() << " at " << i << ", " << j;
      }
    }
  }

  std::unique_ptr<Ops> ops_ = make_test_ops();
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, int64_t{64} << 20};
};

// The sums of some groups are added in f32, each step rounded by 2^-24.
constexpr double kF32 = 4e-7;

TEST_F(GemmInt8, MatchesTheReferenceInEveryShape) {
  constexpr std::array<int64_t, 8> kExtents = {1, 3, 15, 17, 64, 65, 257, 1100};
  int turn = 0;
  for (const int64_t m : kExtents) {
    for (const int64_t n : kExtents) {
      for (const int64_t k : {1, 2, 63, 64, 65, 515, 1031}) {
        if (m * n * k > 10'000'000) continue;
        const int combination = turn++ * 3 % 16;
        const Case test{m,
                        n,
                        k,
                        (combination & 1) != 0,
                        (combination & 2) != 0,
                        (combination & 4) != 0 ? 5 : 0,
                        (combination & 1) != 0 || (combination & 8) != 0};
        Operands operands = Operands::random(test, limit());
        check(operands, kF32);
      }
    }
  }
}

// Where pairs of products are added in 16 bits that saturate, the largest codes show it: limit and
// -limit against 127 and -128, alone and side by side, and zeros. With scales of one, sums below
// 2^24 are exact to the bit.
TEST_F(GemmInt8, ExtremeCodesDoNotSaturate) {
  const std::array<int32_t, 3> of_a = {limit(), -limit(), 0};
  const std::array<int32_t, 3> of_b = {127, -128, 1};
  for (const bool tb : {false, true}) {
    for (const int64_t k : {64, 127, 1024}) {
      // Rows of a and columns of b are all pairs of extremes, at even and at odd places.
      const Case test{9, 9, k, tb, false};
      Operands operands(test, Codes(9, k, 0), Codes(tb ? 9 : k, tb ? k : 9, 0));
      const auto of = [](const std::array<int32_t, 3>& codes, int64_t line, int64_t place) {
        return codes[at(place % 2 == 0 ? line / 3 : line % 3)];
      };
      operands.a.set([&](int64_t row, int64_t p) { return of(of_a, row, p); });
      operands.b.set([&](int64_t row, int64_t column) {
        return tb ? of(of_b, row, column) : of(of_b, column, row);
      });
      check(operands, 0.0);
    }
  }
}

TEST_F(GemmInt8, LimitIsWhatTheHardwareAllows) {
  EXPECT_EQ(limit(), test_isa() >= IsaLevel::v4_vnni ? 127 : 63);
  EXPECT_EQ(make_plan_ops(2, test_isa())->int8_limit(), limit());
}

// Contractions longer than what is packed at once.
TEST_F(GemmInt8, LongContractions) {
  for (const bool tb : {false, true}) {
    Operands operands = Operands::random({7, 70, 20'017, tb, true}, limit());
    check(operands, kF32);
  }
}

// The same bits for any number of threads, and for rows computed apart.
TEST_F(GemmInt8, BitsDependOnNothingButTheOperands) {
  for (const bool tb : {false, true}) {
    const Case test{2100, 330, 1100, tb, true};
    Operands operands = Operands::random(test, limit());
    std::vector<float> first;
    for (const int threads : {1, 2, 3}) {
      const auto ops = make_test_ops(threads);
      auto c = Strided<float>::random(test.m, test.n, 0, 6);
      multiply(*ops, operands, c.view());
      if (first.empty()) first = c.values();
      EXPECT_EQ(c.values(), first) << threads << " threads";
    }
    auto c = Strided<float>::random(test.m, test.n, 0, 6);
    for (const auto& [begin, end] :
         {std::pair<int64_t, int64_t>{0, 33}, {33, 1500}, {1500, 2100}}) {
      ops_->gemm_int8(operands.left(begin, end), operands.right(), Transpose{tb},
                      c.view().rows(begin, end), Accumulate::yes, scratch());
    }
    EXPECT_EQ(c.values(), first) << "in three parts";
  }
}

TEST_F(GemmInt8, PlanTakesWhatTheCpuTakes) {
  const auto plan = make_plan_ops(3, test_isa());
  const auto cpu = make_test_ops(3);
  for (const Case& test : {Case{1, 1, 1, true, false}, Case{70, 1100, 61, true, false},
                           Case{1100, 576, 128, false, false}, Case{3, 5, 9000, false, false}}) {
    Operands operands = Operands::random(test, limit());
    Strided<float> c(test.m, test.n, 0);
    const auto run = [&](Ops& ops, Arena& arena) {
      ops.gemm_int8(operands.left(0, test.m), operands.right(), Transpose{test.transpose_b},
                    c.view(), Accumulate::no, arena);
      return arena.high_water();
    };
    Arena measured = Arena::measuring();
    Arena exact(memory_, Purpose::workspace, run(*plan, measured));
    EXPECT_EQ(run(*cpu, exact), measured.high_water()) << test.describe();
  }
}

TEST_F(GemmInt8, RefusesWhatDoesNotMatch) {
  Codes a(3, 65, 0), b(5, 65, 0), narrow(5, 64, 0);
  std::vector<float> scales(6, 1.0f);
  Strided<float> c(3, 5, 0);
  const Tensor groups(scales.data(), DType::f32, {3, 2});
  const Tensor five(scales.data(), DType::f32, {5});
  const auto run = [&](const Int8Rows& left, const Int8Rows& right, Transpose transpose) {
    ops_->gemm_int8(left, right, transpose, c.view(), Accumulate::no, scratch());
  };
  run({a.view(), groups}, {b.view(), five}, Transpose::yes);
  EXPECT_THROW(run({a.view(), groups}, {b.view(), five}, Transpose::no), Error);
  EXPECT_THROW(run({a.view(), groups}, {b.view(), {}}, Transpose::yes), Error);
  EXPECT_THROW(run({a.view(), groups}, {narrow.view(), five}, Transpose::yes), Error);
  EXPECT_THROW(run({a.view(), groups.columns(0, 1)}, {b.view(), five}, Transpose::yes), Error);
  EXPECT_THROW(run({a.view(), groups.rows(0, 2)}, {b.view(), five}, Transpose::yes), Error);
  const Tensor unsigned_codes(b.view().raw(), DType::u8, {5, 65});
  EXPECT_THROW(run({a.view(), groups}, {unsigned_codes, five}, Transpose::yes), Error);
}

}  // namespace
}  // namespace jackscrew
