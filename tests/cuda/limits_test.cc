// What hardware refuses, the emulation refuses; and what the program does where hardware is
// narrower than the emulation is by default.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/device.h"
#include "kernels/rows/loss.rows.h"
#include "tests/kernels/kernel_data.h"
#include "tests/support/cuda_emulation/kernels/cuda/launch.cuh"
#include "tests/support/errors.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

using cuda::launch;
using cuda_emulation::enqueue;
using cuda_emulation::Machine;
using cuda_emulation::machine;

class CudaLimits : public ::testing::Test {
 protected:
  ~CudaLimits() override { machine() = Machine{}; }
};

void nothing() {}

template <size_t kBytes>
struct Bytes {
  unsigned char bytes[kBytes];
};
template <size_t kBytes>
void takes(Bytes<kBytes>, double) {}

TEST_F(CudaLimits, LaunchesAreRefused) {
  const auto status = [](dim3 blocks, dim3 threads, size_t dynamic_bytes = 0) {
    return launch(nothing, {blocks, threads, dynamic_bytes, nullptr});
  };
  EXPECT_EQ(status({1, 65535, 1}, {32, 1, 1}), cudaSuccess);
  EXPECT_EQ(status({1, 65536, 1}, {32, 1, 1}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status({1, 1, 65536}, {32, 1, 1}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status({0x80000000u, 1, 1}, {32, 1, 1}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status({0, 1, 1}, {32, 1, 1}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status({1, 1, 1}, {1024, 1, 1}), cudaSuccess);
  EXPECT_EQ(status({1, 1, 1}, {1056, 1, 1}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status({1, 1, 1}, {32, 1, 1}, size_t{227} << 10), cudaSuccess);
  EXPECT_EQ(status({1, 1, 1}, {32, 1, 1}, (size_t{227} << 10) + 1), cudaErrorInvalidValue);
  machine().shared_memory = size_t{99} << 10;
  EXPECT_EQ(status({1, 1, 1}, {32, 1, 1}, (size_t{99} << 10) + 1), cudaErrorInvalidValue);
}

TEST_F(CudaLimits, ArgumentsAreFourKilobytes) {
  const cuda::Launch one{{1, 1, 1}, {32, 1, 1}, 0, nullptr};
  EXPECT_EQ(launch(takes<4088>, one, Bytes<4088>{}, 1.0), cudaSuccess);
  // The double lies at a multiple of eight.
  EXPECT_EQ(launch(takes<4089>, one, Bytes<4089>{}, 1.0), cudaErrorLaunchOutOfResources);
}

struct alignas(16) Wide {
  float values[4];
};

void read_wide(const float* from, float* to) {
  const Wide wide = *reinterpret_cast<const Wide*>(from + threadIdx.x * 4);
  to[threadIdx.x] = wide.values[0];
}

TEST_F(CudaLimits, WideLoadsAreAligned) {
  alignas(16) float from[132] = {};
  float to[32];
  const cuda::Launch one{{1, 1, 1}, {32, 1, 1}, 0, nullptr};
  EXPECT_EQ(launch(read_wide, one, from, to), cudaSuccess);
  EXPECT_DEATH(launch(read_wide, one, from + 1, to), "misaligned address");
}

TEST_F(CudaLimits, RowsOfCopiesAreLessThanTwoGigabytesApart) {
  const auto device = open_device("cuda:0", {.threads = 1, .isa = test_isa()});
  Memory memory("device", device->make_backing(), 0);
  const auto ops = device->make_ops(memory);
  const OwnedTensor there(memory, Purpose::io, DType::f32, {2, 3000000});
  const OwnedTensor copied(memory, Purpose::io, DType::f32, {2, 3000000});
  void* data = there.view().raw();
  EXPECT_EQ(cudaMemset2DAsync(data, size_t{1} << 31, 0, 4, 2, nullptr), cudaErrorInvalidPitchValue);
  EXPECT_EQ(cudaMemcpy2DAsync(data, size_t{1} << 31, data, 4, 4, 2, cudaMemcpyDefault, nullptr),
            cudaErrorInvalidPitchValue);
  // A tensor larger than that is one row to a copy: here of 24 MB, where 20 are allowed.
  machine().most_pitch = 20000000;
  const std::vector<float> values = random_floats(6000000, 1);
  std::vector<float> back(values.size());
  ops->copy(there.view(), Tensor(const_cast<float*>(values.data()), DType::f32, {2, 3000000}));
  ops->copy(copied.view(), there.view());
  ops->copy(Tensor(back.data(), DType::f32, {2, 3000000}), copied.view());
  EXPECT_TRUE(back == values);
}

// What is not allowed while a stream is captured, and that the capture does not survive it.
TEST_F(CudaLimits, CapturesAllowNoMemoryAndNoWaits) {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 64), cudaSuccess);
  const std::vector<std::function<cudaError_t()>> forbidden = {
      [&] {
        void* other = nullptr;
        return cudaMalloc(&other, 64);
      },
      [&] { return cudaFree(data); },
      [&] { return cudaMallocHost(&data, 64); },
      [&] { return cudaMemset(data, 0, 64); },
      [&] { return cudaStreamSynchronize(stream); },
      [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaEventSynchronize(event); },
  };
  cudaGraph_t graph = nullptr;
  for (size_t i = 0; i < forbidden.size(); ++i) {
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(forbidden[i](), cudaErrorStreamCaptureUnsupported) << i;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated) << i;
    EXPECT_EQ(graph, nullptr);
  }
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  cudaEventDestroy(event);
  cudaStreamDestroy(stream);
}

class CudaGemmAttempts : public CudaLimits {
 protected:
  // Of a product of ones; 0 where there is no algorithm, with what is said.
  float product() {
    const auto device = open_device("cuda:0", {.threads = 1, .isa = test_isa()});
    Memory memory("device", device->make_backing(), 0);
    const auto ops = device->make_ops(memory);
    const auto ones = [&](int64_t rows, int64_t cols) {
      OwnedTensor out(memory, Purpose::io, DType::f32, {rows, cols});
      std::vector<float> values(static_cast<size_t>(rows * cols), 1.0f);
      ops->copy(out.view(), Tensor(values.data(), DType::f32, {rows, cols}));
      return out;
    };
    const OwnedTensor a = ones(8, 24), b = ones(24, 16), c = ones(8, 16);
    ops->gemm(a.view(), Transpose::no, b.view(), Transpose::no, c.view(), Accumulate::no);
    std::vector<float> out(8 * 16);
    ops->copy(Tensor(out.data(), DType::f32, {8, 16}), c.view());
    return out.back();
  }
};

TEST_F(CudaGemmAttempts, AskForLessBeforeTheyGiveUp) {
  machine().cublaslt_most_alignment = 16;
  EXPECT_EQ(product(), 24.0f);
  machine().cublaslt_takes_workspace = false;
  EXPECT_EQ(product(), 24.0f);
  machine().cublaslt_most_alignment = 8;
  const std::string refusal = error_of(ErrorKind::device, [&] { product(); });
  EXPECT_NE(message_of(refusal).find("has no algorithm for"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace jackscrew
