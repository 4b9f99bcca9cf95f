// The GPU as a device: its memory, copies, and what is said where it is missing or unfit.
#include "kernels/device.h"

#include <gtest/gtest.h>

#include "tests/kernels/kernel_data.h"
#include "tests/support/cuda_emulation/device_pages.h"
#include "tests/support/cuda_emulation/machine.h"
#include "tests/support/errors.h"
#include "tests/support/test_ops.h"
#include "tests/support/tiny_run.h"
#include "tests/support/train_quietly.h"

namespace jackscrew {
namespace {

using cuda_emulation::Machine;
using cuda_emulation::machine;

class CudaDeviceTest : public ::testing::Test {
 protected:
  ~CudaDeviceTest() override { machine() = Machine{}; }
  static std::unique_ptr<Device> open(const std::string& name = "cuda:0") {
    return open_device(name, {.threads = 2, .isa = test_isa()});
  }
  static void expect_refused(const std::string& name, const std::string& words) {
    const std::string refusal = error_of(ErrorKind::device, [&] { open(name); });
    EXPECT_NE(message_of(refusal).find(words), std::string::npos) << refusal;
    EXPECT_NE(hint_of(refusal), "");
  }
};

TEST_F(CudaDeviceTest, IsFoundByItsNames) {
  for (const char* name : {"cuda", "cuda:0"}) EXPECT_EQ(open(name)->name(), "cuda:0");
  EXPECT_EQ(open("cpu")->name(), "cpu");
  EXPECT_EQ(open("auto")->name(), "cpu");
  EXPECT_THROW(open("cuda:"), Error);
  EXPECT_THROW(open("gpu"), Error);
}

TEST_F(CudaDeviceTest, SaysWhatIsMissing) {
  expect_refused("cuda:1", "cuda:1: this machine has 1 GPU");
  machine().capability = 75;
  expect_refused("cuda:0", "compute capability 7.5, and 8.0 is needed");
  machine().gpus = 0;
  expect_refused("cuda:0", "finds no GPU");
  machine().driver = 12040;
  expect_refused("cuda:0", "the NVIDIA driver knows CUDA 12.4, and this program needs CUDA 13.0");
  machine().driver = 0;
  expect_refused("cuda:0", "no NVIDIA driver");
  EXPECT_FALSE(device_reports({}).front().found);
}

TEST_F(CudaDeviceTest, IsMentionedToThoseWhoDidNotChoose) {
  const std::string with_model = open()->description();
  ASSERT_TRUE(with_model.starts_with("cuda:0, ")) << with_model;
  EXPECT_EQ(note_on_gpus(), "a GPU is there, " + with_model.substr(8) + ", for device=cuda:0");
  machine().capability = 75;
  EXPECT_NE(note_on_gpus().find("compute capability 7.5, and 8.0 is needed"), std::string::npos);
  machine().driver = 0;
  EXPECT_EQ(note_on_gpus(), "there is no NVIDIA driver on this machine");
}

TEST_F(CudaDeviceTest, ReportsWhatIsThere) {
  std::string all;
  for (const DeviceReport& report : device_reports({})) {
    EXPECT_TRUE(report.found) << report.name << report.text;
    all += report.name + " ";
  }
  EXPECT_EQ(all, "CUDA driver GPUs cuda:0 cuBLASLt cuDNN (for attention=cudnn) ");
}

TEST_F(CudaDeviceTest, GivesZeroedMemoryUntilThereIsNone) {
  const auto device = open();
  const int64_t before = *device->own_memory();
  Memory memory("device", device->make_backing(), 0);
  {
    const OwnedTensor tensor(memory, Purpose::weights, DType::f32, {1000});
    EXPECT_EQ(before - *device->own_memory(), 4032);
    const OpenedPages opened(cuda_emulation::device_pages());
    for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(tensor.view().data<float>()[i], 0.0f);
  }
  EXPECT_EQ(*device->own_memory(), before);
  error_of(ErrorKind::does_not_fit, [&] { memory.allocate(Purpose::weights, int64_t{1} << 40); });
}

// Strides on either side, and sizes that take several pieces: whole rows, and rows cut up.
TEST_F(CudaDeviceTest, CopiesBothWays) {
  struct Case {
    int64_t rows, cols, from_gap, to_gap;
  };
  const auto device = open();
  Memory memory("device", device->make_backing(), 0);
  const auto ops = device->make_ops(memory);
  for (const Case& c : {Case{1, 1, 0, 0}, Case{3, 5, 2, 7}, Case{1000, 3001, 0, 0},
                        Case{1000, 3001, 3, 5}, Case{2, 3000000, 1, 1}, Case{0, 7, 0, 0}}) {
    const OwnedTensor there(memory, Purpose::io, DType::f32, {c.rows, c.cols + c.from_gap});
    const OwnedTensor other(memory, Purpose::io, DType::f32, {c.rows, c.cols + c.to_gap});
    auto from = Strided<float>::random(c.rows, c.cols, c.from_gap, 1);
    Strided<float> to(c.rows, c.cols, c.to_gap);
    const Tensor first = there.view().columns(0, c.cols);
    const Tensor second = other.view().columns(0, c.cols);
    ops->copy(first, from.view());
    ops->copy(second, first);
    ops->copy(to.view(), second);
    EXPECT_EQ(to.values(), from.values()) << c.rows << " x " << c.cols;
    EXPECT_TRUE(to.gaps_intact());
    ops->zero(second);
    ops->copy(to.view(), second);
    EXPECT_EQ(to.values(), std::vector<float>(from.values().size(), 0.0f));
  }
}

TEST_F(CudaDeviceTest, SaysWhenItIsLost) {
  const auto device = open();
  Memory memory("device", device->make_backing(), 0);
  const auto ops = device->make_ops(memory);
  const OwnedTensor tensor(memory, Purpose::io, DType::f32, {4});
  std::vector<float> host(4);
  machine().calls_left = 0;
  const std::string lost = error_of(
      ErrorKind::device, [&] { ops->copy(Tensor(host.data(), DType::f32, {4}), tensor.view()); });
  EXPECT_NE(message_of(lost).find("illegal memory access"), std::string::npos) << lost;
  EXPECT_NE(hint_of(lost).find("checkpoint"), std::string::npos) << lost;
}

// GPUs of 8.6, 8.9 and 12.0 have 99 KiB of shared memory for a block.
TEST_F(CudaDeviceTest, RunsWithLittleSharedMemory) {
  machine().shared_memory = size_t{99} << 10;
  const TinyRun tiny("little_shared_memory");
  train_quietly(tiny.settings("method=full product=bf16 max_steps=4 device=cuda:0 output_dir=" +
                              tiny.path("out").string()));
  const auto end = tiny.events("out", "end").front();
  EXPECT_EQ(end["graphs"]["refused"], 0) << end;
  EXPECT_GT(end["graphs"]["replayed"], 0) << end;
}

// The same command goes on from what was saved.
TEST_F(CudaDeviceTest, LostInARunTakesNothingThatWasSaved) {
  const TinyRun tiny("lost_gpu");
  const auto train = [&](const std::string& output) {
    train_quietly(tiny.settings("method=lora max_steps=4 save_steps=1 device=cuda:0 output_dir=" +
                                tiny.path(output).string()));
  };
  const auto result = [&](const std::string& output) {
    return tiny.text(output + "/adapter_model.safetensors");
  };
  train("whole");
  const int64_t calls = Machine::kEndless - machine().calls_left;
  for (const int64_t after : {calls / 3, calls * 4 / 5, calls - 1}) {
    const std::string output = fmt::format("lost_{}", after);
    machine().calls_left = after;
    SCOPED_TRACE(output);
    error_of(ErrorKind::device, [&] { train(output); });
    machine() = Machine{};
    train(output);
    EXPECT_EQ(result(output), result("whole"));
  }
}

}  // namespace
}  // namespace jackscrew
