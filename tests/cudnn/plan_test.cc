// cuDNN itself, on no GPU: that it has attention as the program describes it for every kind of GPU
// that the program runs on, and what workspace it takes.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "cli/arguments.h"
#include "kernels/cuda/cudnn_attention.h"

namespace jackscrew {
namespace {

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

  const cuda::CudnnLibrary* library_ = nullptr;
};

TEST_P(CudnnPlan, HasAttentionInTheWorkspaceThatIsThere) {
  constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // see CudaOps
  const Gpu gpu = GetParam();
  const auto cudnn =
      cuda::make_cudnn_attention(*library_, fmt::format("sm_{}", gpu.level), described(gpu));
  size_t shapes = 0;
  // Every plan takes cuDNN a second.
  for (const auto& [head_dim, window] :
       {std::pair<int64_t, int64_t>{64, 0}, {128, 512}, {80, 0}, {256, 0}}) {
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
    EXPECT_LE(cudnn->workspace_bytes(args), kWorkspaceBytes) << head_dim << " " << window;
    EXPECT_EQ(cudnn->known(), ++shapes);
    cudnn->workspace_bytes(args);
    EXPECT_EQ(cudnn->known(), shapes);
  }
  cudnn->forget();
  EXPECT_EQ(cudnn->known(), 0u);
}

TEST_P(CudnnPlan, SaysWhatItHasNothingFor) {
  const Gpu gpu = GetParam();
  const auto cudnn =
      cuda::make_cudnn_attention(*library_, fmt::format("sm_{}", gpu.level), described(gpu));
  AttentionArguments<bf16> args;
  args.sequences = args.num_heads = args.num_kv_heads = 1;
  args.head_dim = args.q_stride = args.k_stride = args.v_stride = args.out_stride = 51;
  args.tokens_q = args.tokens_k = 100;
  try {
    cudnn->workspace_bytes(args);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
    EXPECT_NE(std::string(error.what()).find("1 heads of 51 over 100 tokens"), std::string::npos)
        << error.what();
    EXPECT_EQ(error.hint(), "set attention=own");
  }
  EXPECT_EQ(cudnn->known(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudnnPlan,
                         ::testing::Values(Gpu{80, 166912}, Gpu{86, 101376}, Gpu{89, 101376},
                                           Gpu{90, 232448}, Gpu{100, 232448}, Gpu{120, 101376}),
                         [](const auto& gpu) { return fmt::format("sm_{}", gpu.param.level); });

}  // namespace
}  // namespace jackscrew
