// The CUDA runtime on the CPU; streams: streams.cc. Memory of the device is closed to the host but
// while something that was given to a stream runs.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "tests/support/cuda_emulation/device_pages.h"
#include "tests/support/cuda_emulation/machine.h"
#include "tests/support/cuda_emulation/streams.h"

namespace {

using jackscrew::OpenedPages;
using jackscrew::cuda_emulation::device_pages;
using jackscrew::cuda_emulation::enqueue;
using jackscrew::cuda_emulation::Locked;
using jackscrew::cuda_emulation::machine;
using jackscrew::cuda_emulation::reach_gpu;
using jackscrew::cuda_emulation::refuse_in_capture;

constexpr size_t kMemory = size_t{900} << 20;
constexpr size_t kLarge = size_t{1} << 20;
std::map<void*, size_t> pieces;
size_t taken = 0;  // their sizes

}  // namespace

cudaError_t jackscrew::cuda_emulation::reach_gpu() {
  return machine().calls_left-- > 0 ? cudaSuccess : cudaErrorIllegalAddress;
}

// The limits of the CUDA programming guide, "Compute Capabilities", and 4 KiB of arguments, which
// every driver and GPU takes.
cudaError_t jackscrew::cuda_emulation::check_launch(dim3 blocks, dim3 threads, size_t dynamic_bytes,
                                                    size_t argument_bytes) {
  constexpr unsigned kMostX = 0x7FFFFFFF, kMostYZ = 65535, kMostThreads = 1024;
  constexpr size_t kMostArguments = 4096;
  const auto within = [](unsigned count, unsigned most) { return count > 0 && count <= most; };
  if (!within(blocks.x, kMostX) || !within(blocks.y, kMostYZ) || !within(blocks.z, kMostYZ)) {
    return cudaErrorInvalidConfiguration;
  }
  if (!within(threads.x, kMostThreads) || threads.y != 1 || threads.z != 1) {
    return cudaErrorInvalidConfiguration;
  }
  if (dynamic_bytes > machine().shared_memory) return cudaErrorInvalidValue;
  if (argument_bytes > kMostArguments) return cudaErrorLaunchOutOfResources;
  return cudaSuccess;
}

jackscrew::cuda_emulation::Machine& jackscrew::cuda_emulation::machine() {
  static Machine instance;
  return instance;
}

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
                                          : "emulated error";
}
cudaError_t cudaGetLastError() {
  const Locked lock;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  const Locked lock;
  *version = machine().driver;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  const Locked lock;
  *count = machine().gpus;
  return machine().gpus > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int) {
  const Locked lock;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const Locked lock;
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? machine().capability / 10
           : attribute == cudaDevAttrComputeCapabilityMinor
               ? machine().capability % 10
               : static_cast<int>(machine().shared_memory);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  const Locked lock;
  std::strcpy(properties->name, "emulated GPU");
  properties->uuid = {{'G', 'P', 'U', static_cast<char>(index)}};
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  const Locked lock;
  *available = kMemory - taken;
  *total = kMemory;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t bytes) {
  const Locked lock;
  if (refuse_in_capture()) return cudaErrorStreamCaptureUnsupported;
  if (bytes > kMemory - taken) return cudaErrorMemoryAllocation;
  *data = device_pages().take(bytes);
  pieces[*data] = bytes;
  taken += bytes;
  // What a driver gives was somebody's before. Not so large pieces: opening and closing memory that
  // was touched takes its time.
  if (bytes < kLarge) cudaMemset(*data, 0xFF, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  const Locked lock;
  if (refuse_in_capture()) return cudaErrorStreamCaptureUnsupported;
  const auto piece = pieces.find(data);
  if (piece == pieces.end()) return cudaErrorInvalidValue;
  device_pages().give_back(data, piece->second);
  taken -= piece->second;
  pieces.erase(piece);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, size_t bytes) {
  const Locked lock;
  if (refuse_in_capture()) return cudaErrorStreamCaptureUnsupported;
  *data = std::malloc(bytes);
  return *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* data) {
  const Locked lock;
  if (refuse_in_capture()) return cudaErrorStreamCaptureUnsupported;
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  const Locked lock;
  if (refuse_in_capture()) return cudaErrorStreamCaptureUnsupported;
  if (value == 0 && bytes >= kLarge) {
    device_pages().give_back(to, bytes);  // which leaves zeros
    return cudaSuccess;
  }
  const OpenedPages opened(device_pages());
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const Locked lock;
  enqueue(stream, [=] {
    const OpenedPages opened(device_pages());
    std::memset(to, value, bytes);
  });
  return reach_gpu();
}
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  const Locked lock;
  if (pitch < width || pitch > machine().most_pitch) return cudaErrorInvalidPitchValue;
  enqueue(stream, [=] {
    const OpenedPages opened(device_pages());
    for (size_t row = 0; row < height; ++row) {
      std::memset(static_cast<uint8_t*>(to) + row * pitch, value, width);
    }
  });
  return reach_gpu();
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const Locked lock;
  enqueue(stream, [=] {
    const OpenedPages opened(device_pages());
    std::memcpy(to, from, bytes);
  });
  return reach_gpu();
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
  const Locked lock;
  for (const size_t pitch : {to_pitch, from_pitch}) {
    if (pitch < width || pitch > machine().most_pitch) return cudaErrorInvalidPitchValue;
  }
  enqueue(stream, [=] {
    const OpenedPages opened(device_pages());
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<uint8_t*>(to) + row * to_pitch,
                  static_cast<const uint8_t*>(from) + row * from_pitch, width);
    }
  });
  return reach_gpu();
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  const Locked lock;
  attributes->type =
      device_pages().holds(address) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
}
