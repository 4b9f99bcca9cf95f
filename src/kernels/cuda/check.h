// Turns errors of the CUDA runtime into ours.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace jackscrew::cuda {

inline constexpr const char* kGpuIsFull =
    "close other programs on the GPU, or set device_memory to what is free";

// Throws unless `status` is success: Error(does_not_fit) with `full` as its hint when memory ran
// out, else Error(device), with what failed and the driver's own words.
void check(cudaError_t status, std::string_view what, const char* full = kGpuIsFull);
// The same for functions whose interface hides CUDA's types.
inline void check(int status, std::string_view what) {
  check(static_cast<cudaError_t>(status), what);
}

}  // namespace jackscrew::cuda
