// The contract of Ops::gemm_int8: no bit depends on the hardware.
#include <gtest/gtest.h>

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
};

// The last one is deeper than what is added up before the columns' scales come in.
TEST(CudaGemmInt8, GivesTheBitsOfTheCpu) {
  const auto cpu = make_cpu_ops(1, test_isa());
  const auto gpu = make_test_ops();
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace, int64_t{16} << 20);
  for (const GemmCase& c : {GemmCase{65, 70, 200, Transpose::yes, Accumulate::no},
                            GemmCase{65, 70, 200, Transpose::no, Accumulate::yes},
                            GemmCase{65, 70, 200, Transpose::no, Accumulate::yes, false},
                            GemmCase{3, 5, 64, Transpose::yes, Accumulate::yes},
                            GemmCase{17, 9, 9001, Transpose::yes, Accumulate::yes}}) {
    const bool tb = c.transpose_b == Transpose::yes;
    auto a = random_codes(c.m * c.k, cpu->int8_limit(), 1);
    auto b = random_codes(c.n * c.k, 127, 2);
    const int64_t groups = ceil_div(c.k, kInt8Group);
    auto a_scales = random_floats(c.m * groups, 3);
    auto b_scales = random_floats(c.n, 4);
    const Int8Rows left{Tensor(a.data(), DType::i8, {c.m, c.k}),
                        Tensor(a_scales.data(), DType::f32, {c.m, groups})};
    const Int8Rows right{Tensor(b.data(), DType::i8, {tb ? c.n : c.k, tb ? c.k : c.n}),
                         c.b_scaled ? Tensor(b_scales.data(), DType::f32, {c.n}) : Tensor()};
    const auto run = [&](Ops& ops) {
      auto out = random_floats(c.m * c.n, 5);
      ops.gemm_int8(left, right, c.transpose_b, Tensor(out.data(), DType::f32, {c.m, c.n}),
                    c.accumulate, scratch);
      return out;
    };
    EXPECT_EQ(run(*gpu), run(*cpu)) << c.m << " x " << c.n << " x " << c.k;
  }
}

}  // namespace
}  // namespace jackscrew
