// Launches by parts of a work that have nothing to do with one another, as few.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "kernels/device.h"
#include "kernels/rows/loss.rows.h"
#include "tests/kernels/kernel_data.h"
#include "tests/support/device_run.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

class CudaBatches : public ::testing::Test {
 protected:
  static constexpr int kParts = 70;
  static constexpr int64_t kFloats = 100000;

  CudaBatches() {
    std::vector<float> values = random_floats(kFloats, 1);
    ops_->copy(x_.view(), Tensor(values.data(), DType::f32, {kFloats}));
    ops_->zero(partial_.view());
    ops_->zero(sums_.view());
  }

  // Of one part: from none to all, so that some have several rows.
  static int64_t size(int part) { return part * part * 20; }
  // The sums of squares of the first size(part) elements.
  void sum_of_part(int part) {
    const int64_t chunks = ceil_div(size(part), SquaredNormChunks::kChunk);
    double* const partial = partial_.view().data<double>() + 8 * part;
    ops_->launch(SquaredNormChunks{x_.view().data<float>(), partial, size(part)}, chunks);
    ops_->launch(SumOf{partial, sums_.view().data<double>() + part, chunks}, 1);
  }
  void sum_all() {
    for (int part = 0; part < kParts; ++part) {
      ops_->begin_part();
      sum_of_part(part);
    }
  }

  std::vector<double> sums() {
    std::vector<double> out(kParts);
    ops_->copy(Tensor(out.data(), DType::f64, {kParts}), sums_.view());
    return out;
  }
  // On the emulation, where a launch takes a millisecond.
  template <class Body>
  int64_t launches(const Body& body) {
    ops_->mark();
    body();
    ops_->mark();
    return std::llround(ops_->seconds_between_marks().at(0) / 1e-3);
  }

  std::unique_ptr<Device> device_ = open_device("cuda:0", {.threads = 1, .isa = test_isa()});
  Memory memory_{"device", device_->make_backing(), 0};
  std::unique_ptr<Ops> ops_ = device_->make_ops(memory_);
  OwnedTensor x_{memory_, Purpose::io, DType::f32, {kFloats}};
  OwnedTensor partial_{memory_, Purpose::io, DType::f64, {8 * kParts}};
  OwnedTensor sums_{memory_, Purpose::io, DType::f64, {kParts}};
};

TEST_F(CudaBatches, HaveFewLaunchesAndTheSameBits) {
  // The first part has nothing to sum.
  EXPECT_EQ(launches([&] { sum_all(); }), 2 * kParts - 1);
  const std::vector<double> alone = sums();
  EXPECT_GT(alone[1], 0.0);
  ops_->zero(partial_.view());
  ops_->zero(sums_.view());
  EXPECT_LE(launches([&] { ops_->in_batches([&] { sum_all(); }); }), 8);
  EXPECT_EQ(sums(), alone);
}

TEST_F(CudaBatches, KeepTheOrderWithinAPart) {
  double* const sums = sums_.view().data<double>();
  ops_->in_batches([&] {
    ops_->begin_part();
    sum_of_part(60);
    ops_->launch(SumOf{sums + 60, sums + 1, 1}, 1);  // the same kernel, of what it wrote
    ops_->begin_part();
    ops_->launch(SumOf{partial_.view().data<double>() + 8 * 50, sums + 2, 1}, 1);
    sum_of_part(50);  // an earlier kernel, which writes what was read
  });
  const std::vector<double> got = this->sums();
  EXPECT_GT(got[60], 0.0);
  EXPECT_EQ(got[1], got[60]);
  EXPECT_EQ(got[2], 0.0);
  EXPECT_GT(got[50], 0.0);
}

TEST_F(CudaBatches, GoBeforeWhatIsIssuedAtOnce) {
  double square = 0.0;
  ops_->in_batches([&] {
    sum_of_part(60);
    EXPECT_EQ(sums()[59], 0.0);  // a copy
    square = sums()[60];
    sum_of_part(59);
    ops_->zero(sums_.view());  // not a kernel
    sum_of_part(58);
    ops_->launch(AddScaled{x_.view().data<float>(), x_.view().data<float>(), 1.0f, kFloats},
                 ceil_div(kFloats, AddScaled::kChunk));  // a kernel without batches
  });
  EXPECT_GT(square, 0.0);
  const std::vector<double> got = sums();
  EXPECT_EQ(got[59], 0.0);
  const double before = got[58];
  EXPECT_GT(before, 0.0);
  sum_of_part(58);
  EXPECT_EQ(sums()[58], 4.0 * before);
}

TEST_F(CudaBatches, ForgetWhatWaitsWhereAPartFails) {
  const auto fails = [&] {
    sum_of_part(60);
    throw std::runtime_error("a part that fails");
  };
  EXPECT_THROW(ops_->in_batches(fails), std::runtime_error);
  EXPECT_EQ(sums()[60], 0.0);
  ops_->in_batches([&] { sum_of_part(59); });
  EXPECT_GT(sums()[59], 0.0);
  EXPECT_EQ(sums()[60], 0.0);
}

}  // namespace
}  // namespace jackscrew
