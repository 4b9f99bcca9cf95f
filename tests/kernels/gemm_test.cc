#include <gtest/gtest.h>
#include <omp.h>
#include <sys/prctl.h>

#include <array>
#include <cstdlib>

#include "base/process_memory.h"
#include "kernels/cpu/gemm.h"
#include "kernels/ops.h"
#include "tests/kernels/kernel_data.h"
#include "tests/support/errors.h"
#include "tests/support/sanitizer.h"
#include "tests/support/test_ops.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

struct GemmCase {
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate, bf16;
  int64_t gap;  // between rows, elements

  std::string describe() const {
    return fmt::format("{} x {} x {} {}{} {} {} gap {}", m, n, k, transpose_a ? 't' : 'n',
                       transpose_b ? 't' : 'n', bf16 ? "bf16" : "f32",
                       accumulate ? "added" : "written", gap);
  }
};

template <typename T, typename Result = float>
std::vector<float> run_gemm(Ops& ops, const GemmCase& test, Doubles* want) {
  const auto [m, n, k, ta, tb, accumulate, is_bf16, gap] = test;
  auto a = Strided<T>::random(ta ? k : m, ta ? m : k, gap, 1);
  auto b = Strided<T>::random(tb ? n : k, tb ? k : n, gap, 2);
  auto c = Strided<Result>::random(m, n, gap, 3);
  const Doubles before = widen(c.values());
  ops.gemm(a.view(), Transpose{ta}, b.view(), Transpose{tb}, c.view(), Accumulate{accumulate});
  EXPECT_TRUE(c.gaps_intact()) << test.describe();
  if (want != nullptr) {
    *want = reference::gemm(m, n, k, widen(a.values()), ta, widen(b.values()), tb);
    if (accumulate) {
      for (size_t i = 0; i < want->size(); ++i) (*want)[i] += before[i];
    }
  }
  return c.values();
}

std::vector<float> run_gemm(Ops& ops, const GemmCase& test, Doubles* want = nullptr) {
  return test.bf16 ? run_gemm<bf16>(ops, test, want) : run_gemm<float>(ops, test, want);
}

// f32 sums of k random terms: the error grows as sqrt(k), and relative to the largest element stays
// below 2e-6 up to 2500 terms.
constexpr double kGemmTolerance = 2e-6;

constexpr std::array<int64_t, 9> kExtents = {1, 7, 33, 255, 256, 257, 513, 1100, 2500};

TEST(Gemm, MatchesTheReferenceInEveryCombination) {
  const auto ops = make_test_ops();
  for (int combination = 0; combination < 16; ++combination) {
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                                  {1, 61, 576},
                                  {3, 576, 61},
                                  {33, 7, 257},
                                  {257, 33, 7},
                                  {300, 43, 341},
                                  {61, 257, 33}}) {
      for (const int64_t gap : {0, 5}) {
        const GemmCase test{m,
                            n,
                            k,
                            (combination & 1) != 0,
                            (combination & 2) != 0,
                            (combination & 4) != 0,
                            (combination & 8) != 0,
                            gap};
        Doubles want;
        const std::vector<float> got = run_gemm(*ops, test, &want);
        EXPECT_LE(relative_error(got, want), kGemmTolerance) << test.describe();
      }
    }
  }
}

// Every triple of extents that is cheap enough to check, going round the combinations.
TEST(Gemm, MatchesTheReferenceAtEveryRemainder) {
  const auto ops = make_test_ops();
  int turn = 0;
  for (const int64_t m : kExtents) {
    for (const int64_t n : kExtents) {
      for (const int64_t k : kExtents) {
        if (m * n * k > 10'000'000) continue;
        const int combination = turn++ * 7 % 16;
        const GemmCase test{m,
                            n,
                            k,
                            (combination & 1) != 0,
                            (combination & 2) != 0,
                            (combination & 4) != 0,
                            (combination & 8) != 0,
                            turn % 2};
        Doubles want;
        const std::vector<float> got = run_gemm(*ops, test, &want);
        EXPECT_LE(relative_error(got, want), kGemmTolerance) << test.describe();
      }
    }
  }
}

TEST(Gemm, BitsDoNotDependOnThreads) {
  const auto one = make_test_ops(1);
  const auto two = make_test_ops(2);
  const auto three = make_test_ops(3);
  for (const bool is_bf16 : {false, true}) {
    for (const auto& [ta, tb] : {std::pair{false, false}, {false, true}, {true, false}}) {
      for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 576, 1536},
                                    {4, 1100, 576},
                                    {300, 576, 1100},
                                    {577, 1100, 257},
                                    {70, 2100, 130},
                                    {70, 520, 1100},
                                    {1100, 192, 2500}}) {
        const GemmCase test{m, n, k, ta, tb, true, is_bf16, 0};
        const std::vector<float> expected = run_gemm(*one, test);
        EXPECT_EQ(expected, run_gemm(*two, test)) << test.describe();
        EXPECT_EQ(expected, run_gemm(*three, test)) << test.describe();
      }
    }
  }
}

// Micro-batches of any length come in a run: what is made for each shape is not kept for ever.
TEST(Gemm, ForgetsShapesThatAreNoLongerUsed) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const auto ops = make_test_ops();
  const auto of_depth = [](int64_t depth) {
    return GemmCase{24, 40, depth, false, true, false, false, 0};
  };
  const std::vector<float> first = run_gemm(*ops, of_depth(6));
  const auto shapes = [&](int64_t begin, int64_t end) {
    for (int64_t depth = begin; depth < end; ++depth) run_gemm(*ops, of_depth(depth));
    return anonymous_resident_bytes();
  };
  const int64_t before = shapes(6, 800);
  EXPECT_LT(shapes(800, 2400) - before, int64_t{16} << 20);  // 55 to 156 MiB where all are kept
  EXPECT_EQ(run_gemm(*ops, of_depth(6)), first);
}

// Few rows have a kernel of their own, chosen by m and k.
TEST(Gemm, FewRows) {
  const auto ops = make_test_ops();
  for (const int64_t m : {1, 2, 3, 4, 5}) {
    for (const int64_t k : {1, 15, 63, 576, 2047, 2731, 4100, 20000}) {
      for (int combination = 0; combination < 4; ++combination) {
        const GemmCase test{m, 37, k, false, true, (combination & 1) != 0, (combination & 2) != 0,
                            3};
        Doubles want;
        const std::vector<float> got = run_gemm(*ops, test, &want);
        EXPECT_LE(relative_error(got, want), kGemmTolerance) << test.describe();
      }
    }
  }
}

// Rounding more than once, between parts of the depth or before c is added, errs by more than half
// a unit in the last place.
TEST(Gemm, RoundsAResultOfBf16Once) {
  const auto ops = make_test_ops();
  const auto three = make_test_ops(3);
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 61, 576},
                                {3, 576, 61},
                                {33, 70, 257},
                                {300, 43, 2500},
                                {61, 1100, 130},
                                {70, 2100, 130},     // packed
                                {70, 520, 1100}}) {  // in tiles apart
    for (int combination = 0; combination < 8; ++combination) {
      const GemmCase test{m,
                          n,
                          k,
                          (combination & 1) != 0,
                          (combination & 2) != 0,
                          (combination & 4) != 0,
                          true,
                          combination % 3};
      Doubles want;
      const std::vector<float> got = run_gemm<bf16, bf16>(*ops, test, &want);
      double largest = 0.0;
      for (const double value : want) largest = std::max(largest, std::abs(value));
      double excess = 0.0;
      for (size_t i = 0; i < want.size(); ++i) {
        const double error = std::abs(static_cast<double>(got[i]) - want[i]);
        excess = worse(excess, error - std::abs(want[i]) / 256.0);
      }
      EXPECT_LE(excess, kGemmTolerance * largest) << test.describe();
      EXPECT_EQ(got, (run_gemm<bf16, bf16>(*three, test, nullptr))) << test.describe();
    }
  }
}

TEST(Gemm, AddsOntoAnotherTensor) {
  const auto ops = make_test_ops();
  constexpr int64_t kM = 33, kN = 61, kK = 70;
  auto a = Strided<float>::random(kM, kK, 3, 1);
  auto b = Strided<float>::random(kN, kK, 0, 2);
  auto addend = Strided<float>::random(kM, kN, 7, 3);
  auto c = Strided<float>::random(kM, kN, 5, 4);
  ops->gemm_onto(addend.view(), a.view(), Transpose::no, b.view(), Transpose::yes, c.view());
  Doubles want = reference::gemm(kM, kN, kK, widen(a.values()), false, widen(b.values()), true);
  const Doubles before = widen(addend.values());
  for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
  EXPECT_LE(relative_error(c.values(), want), kGemmTolerance);
  EXPECT_TRUE(c.gaps_intact());
}

// The sum is multiplied before it is rounded to the result's type.
template <class Result>
void expect_scaled_gemm(double tolerance) {
  const auto ops = make_test_ops();
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace, 1 << 16);
  constexpr int64_t kM = 33, kN = 16, kK = 70;
  auto a = Strided<Result>::random(kM, kK, 3, 1);
  auto b = Strided<Result>::random(kN, kK, 0, 2);
  auto c = Strided<Result>::random(kM, kN, 0, 4);
  ops->gemm_scaled(0.3f, a.view(), Transpose::no, b.view(), Transpose::yes, c.view(), scratch);
  Doubles want = reference::gemm(kM, kN, kK, widen(a.values()), false, widen(b.values()), true);
  for (double& value : want) value *= static_cast<double>(0.3f);
  EXPECT_LE(relative_error(c.values(), want), tolerance);
}

TEST(Gemm, ScalesBeforeItRounds) {
  expect_scaled_gemm<float>(kGemmTolerance);
  expect_scaled_gemm<bf16>(1.0 / 256);
}

// Large enough for several threads to be inside the library at once, with primitives made by
// another.
TEST(Gemm, ThreadsDoNotDisturbOneAnother) {
  const auto one = make_test_ops(1);
  for (const bool tb : {false, true}) {
    for (const bool is_bf16 : {false, true}) {
      const GemmCase test{1024, 576, 576, false, tb, false, is_bf16, 0};
      const std::vector<float> expected = run_gemm(*one, test);
      const auto many = make_test_ops(4);
      for (int i = 0; i < 5; ++i) EXPECT_EQ(expected, run_gemm(*many, test)) << test.describe();
    }
  }
}

TEST(Gemm, RefusesWhatDoesNotMatch) {
  const auto ops = make_test_ops();
  Strided<float> a(3, 4, 0), b(5, 4, 0), c(3, 5, 0);
  Strided<bf16> narrow_b(5, 4, 0);
  EXPECT_THROW(
      ops->gemm(a.view(), Transpose::no, b.view(), Transpose::no, c.view(), Accumulate::no), Error);
  EXPECT_THROW(
      ops->gemm(a.view(), Transpose::yes, b.view(), Transpose::yes, c.view(), Accumulate::no),
      Error);
  EXPECT_THROW(
      ops->gemm(a.view(), Transpose::no, narrow_b.view(), Transpose::yes, c.view(), Accumulate::no),
      Error);
  Strided<bf16> narrow_c(3, 5, 0);
  EXPECT_THROW(
      ops->gemm(a.view(), Transpose::no, b.view(), Transpose::yes, narrow_c.view(), Accumulate::no),
      Error);
}

// PR_SET_MDWE and PR_GET_MDWE of Linux 6.3, by which systemd has MemoryDenyWriteExecute.
constexpr int kSetMdwe = 65;
constexpr int kGetMdwe = 66;

// What this process has written may not become code any more.
[[noreturn]] void multiply_without_new_code() {
  ::prctl(kSetMdwe, 1UL, 0UL, 0UL, 0UL);
  Strided<float> a(64, 96, 0), b(96, 80, 0), c(64, 80, 0);
  omp_set_num_threads(3);
  CpuGemm gemm(1, test_isa());
  const std::string error = error_of(ErrorKind::device, [&] {
    gemm.run(a.view(), Transpose::no, b.view(), Transpose::no, c.view(), Accumulate::no);
  });
  fmt::print(stderr, "{}\n", error);
  std::_Exit(omp_get_max_threads());
}

TEST(Gemm, ASystemThatForbidsItsCodeIsNamed) {
  if (::prctl(kGetMdwe, 0UL, 0UL, 0UL, 0UL) < 0) GTEST_SKIP() << "Linux forbids it from 6.3 on";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // by a process that has made no code yet
  EXPECT_EXIT(multiply_without_new_code(), ::testing::ExitedWithCode(3),
              "oneDNN cannot compute a product .* \\| .*MemoryDenyWriteExecute");
}

// The level was chosen as this program began.
TEST(Isa, IsChosenOnce) {
  const IsaLevel machine = detect_isa();
  EXPECT_EQ(choose_isa(isa_name(test_isa())), test_isa());
  const std::string used =
      fmt::format("oneDNN computes with {} in this process", isa_name(test_isa()));
  for (const IsaLevel level :
       {IsaLevel::v3, IsaLevel::v4, IsaLevel::v4_vnni, IsaLevel::v4_bf16, IsaLevel::v4_amx}) {
    if (level == test_isa() || level > machine) continue;
    expect_message(ErrorKind::device, used, [&] { choose_isa(isa_name(level)); });
  }
  if (test_isa() == machine) {
    EXPECT_EQ(choose_isa("auto"), machine);
  } else {
    expect_error(ErrorKind::device, used, [] { choose_isa("auto"); });
  }
}

}  // namespace
}  // namespace jackscrew
