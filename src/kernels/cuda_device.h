// NVIDIA GPUs as devices: kernels/cuda/cuda_device.cc or, in a build without CUDA,
// kernels/no_cuda/cuda_device.cc.
#pragma once

#include "kernels/device.h"

namespace jackscrew {

// Throws Error(device) with what is missing: driver, GPU, capability or library.
std::unique_ptr<Device> open_cuda_device(int index, const DeviceSettings& settings);

// See note_on_gpus().
std::string cuda_note();

std::vector<DeviceReport> cuda_reports(const std::vector<fs::path>& environments);

}  // namespace jackscrew
