// The contract of Ops::gemm_int8: no bit depends on the hardware.
#include <gtest/gtest.h>

#include <array>

#include "tests/kernels/kernel_data.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

std::vector<int8_t> random_codes(int64_t count, int32_t limit, uint32_t seed) {
  const RandomStream stream = RandomStream::make(seed, RandomPurpose::init, 0, 0);
  std::vector<int8_t> out(at(count));
  for (size_t i = 0; i < out.size(); ++i) {
    const auto code = static_cast<int32_t>(stream.bits(i) % static_cast<uint32_t>(2 * limit + 1));
    out[i] = static_cast<int8_t>(code - limit);
  }
  return out;
}

struct GemmCase {
  int64_t m, n, k;
  Transpose transpose_b;
  Accumulate accumulate;
  bool b_scaled = true;
  int64_t gap = 0;  // from the end of each row to the next
};

// `rows` rows of a matrix that is `gap` wider.
template <class T>
Tensor within(std::vector<T>& values, DType dtype, int64_t rows, int64_t cols, int64_t gap) {
  return Tensor(values.data(), dtype, {rows, cols + gap}).columns(0, cols);
}

std::vector<float> product(Ops& ops, const GemmCase& c, int32_t limit, Arena& scratch) {
  const bool tb = c.transpose_b == Transpose::yes;
  const int64_t b_rows = tb ? c.n : c.k, b_cols = tb ? c.k : c.n;
  const int64_t groups = ceil_div(c.k, kInt8Group);
  auto a = random_codes(c.m * (c.k + c.gap), limit, 1);
  auto b = random_codes(b_rows * (b_cols + c.gap), 127, 2);
  auto a_scales = random_floats(c.m * (groups + c.gap), 3);
  auto b_scales = random_floats(c.n, 4);
  auto out = random_floats(c.m * (c.n + c.gap), 5);
  ops.gemm_int8(
      {within(a, DType::i8, c.m, c.k, c.gap), within(a_scales, DType::f32, c.m, groups, c.gap)},
      {within(b, DType::i8, b_rows, b_cols, c.gap),
       c.b_scaled ? Tensor(b_scales.data(), DType::f32, {c.n}) : Tensor()},
      c.transpose_b, within(out, DType::f32, c.m, c.n, c.gap), c.accumulate, scratch);
  return out;
}

class CudaGemmInt8 : public ::testing::Test {
 protected:
  void expect_bits_of_cpu(const GemmCase& c) {
    const int32_t limit = cpu_->int8_limit();
    EXPECT_EQ(product(*gpu_, c, limit, scratch_), product(*cpu_, c, limit, scratch_))
        << c.m << " x " << c.n << " x " << c.k << (c.transpose_b == Transpose::yes ? " nt" : " nn")
        << ", rows " << c.gap << " apart";
  }

  std::unique_ptr<Ops> cpu_ = make_cpu_ops(1, test_isa());
  std::unique_ptr<Ops> gpu_ = make_test_ops();
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, int64_t{16} << 20};
};

// Blocks that c fills and blocks at its edges, rows that may be copied 16 bytes at a time and
// others.
TEST_F(CudaGemmInt8, GivesTheBitsOfTheCpu) {
  for (const Transpose tb : {Transpose::yes, Transpose::no}) {
    for (const auto& [m, n, k, gap] : std::vector<std::array<int64_t, 4>>{
             {1, 1, 1, 0},
             {65, 70, 200, 0},       // no row is aligned
             {3, 5, 64, 11},         // a's codes alone are
             {128, 128, 256, 0},     // as large as a block
             {129, 130, 64, 1},      // a whole block whose rows of c are not aligned
             {200, 144, 192, 0},     // rows of scales are not aligned
             {129, 160, 592, 16},    // the last group is cut, c's rows and the scales are aligned
             {140, 136, 472, 8}}) {  // so is a piece of 16 bytes
      expect_bits_of_cpu({m, n, k, tb, Accumulate::no, true, gap});
      expect_bits_of_cpu({m, n, k, tb, Accumulate::yes, tb == Transpose::yes, gap});
    }
  }
}

// More than what is added up before the columns' scales come in.
TEST_F(CudaGemmInt8, AddsLongContractionsInParts) {
  for (const Transpose tb : {Transpose::yes, Transpose::no}) {
    expect_bits_of_cpu({17, 9, 9001, tb, Accumulate::yes, true, 0});
    expect_bits_of_cpu({20, 32, kInt8Depth + 272, tb, Accumulate::no, true, 0});
    expect_bits_of_cpu({20, 32, 2 * kInt8Depth, tb, Accumulate::yes, true, 16});
  }
}

}  // namespace
}  // namespace jackscrew
