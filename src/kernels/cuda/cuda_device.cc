#include "kernels/cuda_device.h"

#include <cuda_runtime_api.h>

#include "base/text.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/shared_library.h"

namespace jackscrew {

namespace {

using cuda::check;

constexpr int kLowestCapability = 80;  // that the program has code for

std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// The driver's version; throws if there is no driver, or one too old for the program's runtime.
int require_driver() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    throw Error(ErrorKind::device, "there is no NVIDIA driver on this machine",
                "install the driver, or set device=cpu");
  }
  if (driver / 1000 < CUDART_VERSION / 1000) {
    throw Error(ErrorKind::device,
                fmt::format("the NVIDIA driver knows CUDA {}, and this program needs CUDA {}.0",
                            cuda_version(driver), CUDART_VERSION / 1000),
                "update the driver, or build with an older CUDA toolkit (12.0 or later)");
  }
  return driver;
}

// Throws if there is none.
int count_gpus() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    throw Error(ErrorKind::device, "the NVIDIA driver finds no GPU",
                "look at nvidia-smi and CUDA_VISIBLE_DEVICES, or set device=cpu");
  }
  check(status, "counting GPUs");
  return count;
}

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, index), "asking a GPU what it can do");
  return value;
}

int capability_of(int index) {
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor, index) +
         attribute(cudaDevAttrComputeCapabilityMinor, index);
}

cudaDeviceProp properties_of(int index) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), "asking a GPU's name");
  return properties;
}

std::string name_of(int index) {
  return properties_of(index).name;
}

// Throws if the GPU is too old.
void check_capability(int index) {
  const int capability = capability_of(index);
  if (capability >= kLowestCapability) return;
  throw Error(ErrorKind::device,
              fmt::format("cuda:{} ({}) has compute capability {}.{}, and {}.{} is needed", index,
                          name_of(index), capability / 10, capability % 10, kLowestCapability / 10,
                          kLowestCapability % 10),
              "use a GPU from Ampere on, or set device=cpu");
}

// Plain allocations, one for each call.
class CudaBacking : public Backing {
 public:
  explicit CudaBacking(int index) : index_(index) {}

  void* acquire(size_t bytes) override {
    check(cudaSetDevice(index_), "choosing the GPU");
    void* data = nullptr;
    check(cudaMalloc(&data, bytes),
          fmt::format("taking {} of the GPU's memory", human_bytes(static_cast<int64_t>(bytes))));
    // The default stream, which the stream of the Ops does not wait for: hence the host does.
    check(cudaMemset(data, 0, bytes), "clearing memory");
    check(cudaStreamSynchronize(nullptr), "clearing memory");
    return data;
  }
  // Waits, as work that uses the memory may be running. Errors are ignored: what a lost GPU held is
  // gone.
  void release(void* data, size_t) override {
    cudaDeviceSynchronize();
    cudaFree(data);
  }

 private:
  int index_;
};

class CudaDevice : public Device {
 public:
  CudaDevice(int index, const DeviceSettings& settings)
      : index_(index), threads_(settings.threads), isa_(settings.isa) {
    require_driver();
    if (const int count = count_gpus(); index >= count) {
      throw Error(ErrorKind::device,
                  fmt::format("cuda:{}: this machine has {}", index, counted(count, "GPU")),
                  "jackscrew doctor lists them");
    }
    check_capability(index);
    gpu_.level = fmt::format("sm_{}", capability_of(index));
    gpu_.shared_memory_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
    libraries_.cublaslt = &cuda::open_cublaslt(settings.environments);
    if (settings.attention == AttentionLibrary::cudnn) {
      libraries_.cudnn = &cuda::open_cudnn(settings.environments);
    }
  }

  std::string name() const override { return fmt::format("cuda:{}", index_); }
  std::string model() const override { return name_of(index_); }
  std::string identity() const override {
    const cudaDeviceProp properties = properties_of(index_);
    std::string text;
    for (const char byte : properties.uuid.bytes) {
      text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    }
    return text;
  }
  std::string arithmetic() const override {
    return fmt::format("{} and cuBLAS {}", model(),
                       cuda::version_text(libraries_.cublaslt->version()));
  }
  std::unique_ptr<Backing> make_backing() const override {
    return std::make_unique<CudaBacking>(index_);
  }
  std::unique_ptr<Ops> make_ops(Memory& memory) const override {
    check(cudaSetDevice(index_), "choosing the GPU");
    return cuda::make_cuda_ops(libraries_, gpu_, memory, threads_, isa_);
  }
  std::unique_ptr<Ops> make_plan_ops(Memory& memory) const override {
    return cuda::make_cuda_plan_ops(gpu_, memory, threads_, isa_);
  }
  std::optional<int64_t> own_memory() const override {
    check(cudaSetDevice(index_), "choosing the GPU");
    size_t available = 0;
    size_t total = 0;
    check(cudaMemGetInfo(&available, &total), "asking for the GPU's free memory");
    return static_cast<int64_t>(available);
  }

 private:
  int index_;
  int threads_;
  IsaLevel isa_;
  cuda::GpuInfo gpu_;
  cuda::GpuLibraries libraries_;
};

// What find() returns, or the error that it throws, as one line.
template <class Find>
DeviceReport report(const std::string& name, const Find& find) {
  try {
    return {name, true, find()};
  } catch (const Error& error) {
    return {name, false, fmt::format("{} ({})", error.what(), error.hint())};
  }
}

}  // namespace

std::unique_ptr<Device> open_cuda_device(int index, const DeviceSettings& settings) {
  return std::make_unique<CudaDevice>(index, settings);
}

std::string cuda_note() {
  try {
    require_driver();
    count_gpus();
    check_capability(0);
    return fmt::format("a GPU is there, {}, for device=cuda:0", name_of(0));
  } catch (const Error& error) {
    return error.what();
  }
}

std::vector<DeviceReport> cuda_reports(const std::vector<fs::path>& environments) {
  std::vector<DeviceReport> out;
  out.push_back(report("CUDA driver", [] {
    return fmt::format("CUDA {}; this program brings the runtime of {}",
                       cuda_version(require_driver()), cuda_version(CUDART_VERSION));
  }));
  int count = 0;
  if (out.front().found) {
    out.push_back(report("GPUs", [&] { return std::to_string(count = count_gpus()); }));
  }
  for (int i = 0; i < count; ++i) {
    out.push_back(report(fmt::format("cuda:{}", i), [&] {
      const int capability = capability_of(i);
      const bool fit = capability >= kLowestCapability;
      return fmt::format("{}, sm_{}{}", name_of(i), capability, fit ? "" : ": too old");
    }));
  }
  out.push_back(report("cuBLASLt", [&] {
    const cuda::CublasLt& library = cuda::open_cublaslt(environments);
    return cuda::version_text(library.version()) + ", " + library.path;
  }));
  out.push_back(report("cuDNN (for attention=cudnn)", [&] {
    const cuda::CudnnLibrary& library = cuda::open_cudnn(environments);
    return cuda::version_text(library.version) + ", " + library.path;
  }));
  return out;
}

}  // namespace jackscrew
