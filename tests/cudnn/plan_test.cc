// cuDNN itself, on no GPU: that it has attention as the program describes it for every kind of GPU
// that the program runs on, and what workspace it takes.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "cli/arguments.h"
#include "kernels/cuda/cudnn_attention.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // see CudaOps

struct Gpu {
  int level;
  int shared_memory;  // bytes that a block may have
};

std::string described(const Gpu& gpu) {
  return fmt::format(
      R"({{"deviceName": "GPU", "cudaDeviceId": 0, "deviceVer": {}, "driverVer": 13000,)"
      R"("multiProcessorCount": 128, "maxGridSize": [2147483647, 65535, 65535],)"
      R"("maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "smClockRateKHz": 1900000,)"
      R"("memClockRateKHz": 2600000, "memoryBusWidth": 5120, "l2CacheSize": 52428800,)"
      R"("warpSize": 32, "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": {},)"
      R"("reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,)"
      R"("maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "supportCoopLaunch": 1,)"
      R"("totalGlobalMem": 85899345920, "pciDeviceId": 0, "isTccDriver": 0}})",
      10 * gpu.level, gpu.shared_memory);
}

class CudnnPlan : public ::testing::TestWithParam<Gpu> {
 protected:
  void SetUp() override {
    ASSERT_NE(::dlopen(JACKSCREW_DRIVER_STUB, RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror();
    std::vector<fs::path> environments = python_environments();
    environments.emplace_back(JACKSCREW_CUDA_ENVIRONMENT);  // of script/setup --cuda
    try {
      library_ = &cuda::open_cudnn(environments);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what() << " (" << error.hint() << ")";
    }
  }

  // For the GPU of the case.
  std::unique_ptr<cuda::CudnnAttention> make(int64_t workspace_bytes) const {
    const Gpu gpu = GetParam();
    return cuda::make_cudnn_attention(*library_, fmt::format("sm_{}", gpu.level), workspace_bytes,
                                      described(gpu));
  }

  const cuda::CudnnLibrary* library_ = nullptr;
};

// Packed sequences of a Llama.
AttentionArguments<bf16> llama_like(int64_t head_dim, int64_t window) {
  AttentionArguments<bf16> args;
  args.sequences = 8;
  args.num_heads = 32;
  args.num_kv_heads = 8;
  args.head_dim = head_dim;
  args.tokens_q = args.tokens_k = 4095;
  args.scale = 0.125f;
  args.window = window;
  args.bf16_operands = true;
  args.q_stride = args.out_stride = args.num_heads * head_dim;
  args.k_stride = args.v_stride = args.num_kv_heads * head_dim;
  return args;
}

TEST_P(CudnnPlan, HasAttentionInTheWorkspaceThatIsThere) {
  const auto cudnn = make(kWorkspaceBytes);
  size_t shapes = 0;
  // Every plan takes cuDNN a second. The last window is wider than any text.
  for (const auto& [head_dim, window] :
       {std::pair<int64_t, int64_t>{64, 0}, {128, 512}, {80, 0}, {256, int64_t{1} << 40}}) {
    const AttentionArguments<bf16> args = llama_like(head_dim, window);
    cudnn->plan(args);
    EXPECT_EQ(cudnn->known(), ++shapes);
    cudnn->plan(args);
    EXPECT_EQ(cudnn->known(), shapes);
  }
  cudnn->forget();
  EXPECT_EQ(cudnn->known(), 0u);
}

TEST_P(CudnnPlan, SaysWhatItHasNothingFor) {
  const auto cudnn = make(kWorkspaceBytes);
  AttentionArguments<bf16> args;
  args.sequences = args.num_heads = args.num_kv_heads = 1;
  args.head_dim = args.q_stride = args.k_stride = args.v_stride = args.out_stride = 51;
  args.tokens_q = args.tokens_k = 100;
  const std::string refusal = error_of(ErrorKind::device, [&] { cudnn->plan(args); });
  EXPECT_NE(message_of(refusal).find("1 heads of 51 over 100 tokens"), std::string::npos)
      << refusal;
  EXPECT_EQ(hint_of(refusal), "set attention=own");
  EXPECT_EQ(cudnn->known(), 0u);
  if (GetParam().level != 90) return;  // where it takes some
  const auto cramped = make(1);
  expect_error(ErrorKind::device, "of workspace, and there are 1 B",
               [&] { cramped->plan(llama_like(64, 0)); });
  EXPECT_EQ(cramped->known(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudnnPlan,
                         ::testing::Values(Gpu{80, 166912}, Gpu{86, 101376}, Gpu{89, 101376},
                                           Gpu{90, 232448}, Gpu{100, 232448}, Gpu{120, 101376}),
                         [](const auto& gpu) { return fmt::format("sm_{}", gpu.param.level); });

}  // namespace
}  // namespace jackscrew
