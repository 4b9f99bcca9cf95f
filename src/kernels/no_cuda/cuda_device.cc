// A build without CUDA.
#include "kernels/cuda_device.h"

namespace jackscrew {

std::unique_ptr<Device> open_cuda_device(int index, const DeviceSettings&) {
  throw Error(ErrorKind::device, fmt::format("cuda:{}: this program was built without CUDA", index),
              "build it where nvcc is installed (-DJACKSCREW_CUDA=ON), or set device=cpu");
}

std::string cuda_note() {
  return "";
}

std::vector<DeviceReport> cuda_reports(const std::vector<fs::path>&) {
  return {{"CUDA", false, "this program was built without it"}};
}

}  // namespace jackscrew
