// Streams of the emulation, and work that is recorded on them.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/replay.h"
#include "kernels/device.h"
#include "kernels/rows/loss.rows.h"
#include "tests/support/cuda_emulation/machine.h"
#include "tests/support/cuda_emulation/streams.h"
#include "tests/support/device_run.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

using cuda_emulation::enqueue;
using cuda_emulation::graph_launches;

TEST(CudaStreams, DoTheirWorkWhenSomebodyWaits) {
  cudaStream_t first = nullptr;
  cudaStream_t second = nullptr;
  cudaEvent_t half = nullptr;
  cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&half, cudaEventDisableTiming);
  std::vector<int> order;
  enqueue(first, [&] { order.push_back(1); });
  cudaEventRecord(half, first);
  enqueue(first, [&] { order.push_back(2); });
  cudaStreamWaitEvent(second, half, 0);
  enqueue(second, [&] { order.push_back(3); });
  EXPECT_TRUE(order.empty());
  cudaStreamSynchronize(second);
  EXPECT_EQ(order, (std::vector<int>{1, 3}));
  cudaStreamSynchronize(first);
  EXPECT_EQ(order, (std::vector<int>{1, 3, 2}));
  cudaEventDestroy(half);
  cudaStreamDestroy(first);
  cudaStreamDestroy(second);
}

class CudaReplay : public ::testing::Test {
 protected:
  CudaReplay() { set(1.0f); }
  ~CudaReplay() override { cuda_emulation::machine() = {}; }

  void set(float value) {
    std::vector<float> ones(4, value);
    ops_->copy(x_.view(), Tensor(ones.data(), DType::f32, {4}));
  }
  float sum() {
    std::vector<float> out(4);
    ops_->copy(Tensor(out.data(), DType::f32, {4}), y_.view());
    return out[3];
  }
  // y += x, under a name.
  void add(int64_t key) {
    ops_->repeat({key}, [&] {
      ++bodies_;
      ops_->launch(AddScaled{x_.view().data<float>(), y_.view().data<float>(), 1.0f, 4}, 1);
    });
  }

  std::unique_ptr<Device> device_ = open_device("cuda:0", {.threads = 1, .isa = test_isa()});
  Memory memory_{"device", device_->make_backing(), 0};
  std::unique_ptr<Ops> ops_ = device_->make_ops(memory_);
  OwnedTensor x_{memory_, Purpose::io, DType::f32, {4}};
  OwnedTensor y_{memory_, Purpose::io, DType::f32, {4}};
  int bodies_ = 0;
};

TEST_F(CudaReplay, RunsThenRecordsThenReplays) {
  const int64_t before = graph_launches();
  for (int i = 1; i <= 5; ++i) {
    add(7);
    EXPECT_EQ(sum(), static_cast<float>(i));
  }
  EXPECT_EQ(bodies_, 2);
  EXPECT_EQ(graph_launches() - before, 4);
  const RepeatCounts counts = ops_->repeat_counts();
  EXPECT_EQ(counts.issued, 1);
  EXPECT_EQ(counts.recorded, 1);
  EXPECT_EQ(counts.replayed, 4);
  EXPECT_EQ(counts.refused, 0);
  set(10.0f);  // what lies at the addresses may change
  add(7);
  EXPECT_EQ(sum(), 15.0f);
}

TEST_F(CudaReplay, KnowsWorkApart) {
  for (int round = 0; round < 3; ++round) {
    for (int64_t key = 0; key < 20; ++key) add(key);  // more than it has graphs for
  }
  EXPECT_EQ(sum(), 60.0f);
  EXPECT_EQ(bodies_, 20 + 20 + 12);  // eight are recorded in the second round
  for (int round = 0; round < 3; ++round) {
    add(1);
    add(2);
  }
  EXPECT_EQ(sum(), 66.0f);
  EXPECT_EQ(bodies_, 52);
}

// As with gradient_accumulation_steps=16 and rows of every length.
TEST_F(CudaReplay, RecordsAnUpdateBetweenMicroBatchesThatAllDiffer) {
  constexpr int64_t kUpdate = -1;
  int64_t key = 0;
  for (int step = 0; step < 40; ++step) {
    for (int i = 0; i < 16; ++i) add(key++);
    add(kUpdate);
  }
  EXPECT_EQ(sum(), 40.0f * 17.0f);
  EXPECT_EQ(bodies_, 40 * 16 + 2);
  EXPECT_EQ(ops_->repeat_counts().recorded, 1);
}

// What comes often has a graph, whatever had one before.
TEST_F(CudaReplay, RecordsWhatComesMostOften) {
  for (int round = 0; round < 2; ++round) {
    for (int64_t key = 0; key < 8; ++key) add(key);
  }
  for (int i = 0; i < 4; ++i) add(100);
  EXPECT_EQ(sum(), 20.0f);
  EXPECT_EQ(ops_->repeat_counts().recorded, 9);
  EXPECT_EQ(bodies_, 8 + 8 + 3);
}

// As in a run whose weights that learn change from time to time: each time it is other work.
TEST_F(CudaReplay, RecordsAnewWhatItWasToldToForget) {
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 5; ++i) add(7);
    ops_->forget_repeats();
  }
  EXPECT_EQ(sum(), 50.0f);
  EXPECT_EQ(ops_->repeat_counts().recorded, 10);
  EXPECT_EQ(bodies_, 20);
}

TEST_F(CudaReplay, MarksMomentsOfTheStream) {
  const auto one = [&] {
    ops_->launch(AddScaled{x_.view().data<float>(), y_.view().data<float>(), 1.0f, 4}, 1);
  };
  EXPECT_TRUE(ops_->has_marks());
  EXPECT_TRUE(ops_->seconds_between_marks().empty());
  for (int round = 0; round < 2; ++round) {
    ops_->mark();
    one();
    ops_->mark();
    ops_->mark();
    one();
    one();
    ops_->mark();
    // On the emulation, where a piece of work takes a millisecond.
    const std::vector<double> wanted = {1e-3, 0.0, 2e-3};
    const std::vector<double> got = ops_->seconds_between_marks();
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-9);
  }
  EXPECT_TRUE(ops_->seconds_between_marks().empty());
}

// A copy from the host would be replayed with what the host had then: it is not recorded.
TEST_F(CudaReplay, RunsWhatCannotBeRecorded) {
  const int64_t before = graph_launches();
  for (int i = 1; i <= 4; ++i) {
    ops_->repeat({1}, [&] {
      set(static_cast<float>(i));
      ops_->launch(AddScaled{x_.view().data<float>(), y_.view().data<float>(), 1.0f, 4}, 1);
    });
  }
  EXPECT_EQ(sum(), 10.0f);
  EXPECT_EQ(graph_launches(), before);
  const RepeatCounts counts = ops_->repeat_counts();
  EXPECT_EQ(counts.issued, 4);
  EXPECT_EQ(counts.refused, 1);
  EXPECT_EQ(counts.refusal, "a copy from or to the host cannot be recorded");
  EXPECT_EQ(counts.recorded + counts.replayed, 0);
}

TEST_F(CudaReplay, LetsErrorsThrough) {
  add(1);
  const auto broken = [&] { ops_->repeat({1}, [] { fail(ErrorKind::generic, "broken"); }); };
  EXPECT_THROW(broken(), Error);
  EXPECT_THROW(broken(), Error);
  add(2);
  add(2);
  cuda_emulation::machine().calls_left = 0;
  EXPECT_THROW(add(2), Error);
}

TEST(CudaRun, ReplaysItsSteps) {
  const int64_t before = graph_launches();
  DeviceRun("method=full device=cuda:0").run();
  // Two sessions of three steps each: the first runs, the second is recorded. The first of the two
  // micro-batches has another number of targets every time.
  EXPECT_GE(graph_launches() - before, 2 * 2 * 2);
}

}  // namespace
}  // namespace jackscrew
