#include "kernels/device.h"

#include <algorithm>

#include "base/text.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda_device.h"
#include "kernels/plan/plan_ops.h"

namespace jackscrew {

namespace {

class CpuDevice : public Device {
 public:
  CpuDevice(int threads, IsaLevel isa) : threads_(threads), isa_(isa) {}

  std::string name() const override { return "cpu"; }
  std::unique_ptr<Backing> make_backing() const override { return make_host_backing(); }
  std::unique_ptr<Ops> make_ops(Memory&) const override { return make_cpu_ops(threads_, isa_); }
  std::unique_ptr<Ops> make_plan_ops(Memory&) const override {
    return jackscrew::make_plan_ops(threads_, isa_);
  }
  std::optional<int64_t> own_memory() const override { return std::nullopt; }
  bool shares_host_memory() const override { return true; }

 private:
  int threads_;
  IsaLevel isa_;
};

// The number of a GPU; nullopt for another name.
std::optional<int64_t> cuda_index(std::string_view name) {
  constexpr std::string_view kCuda = "cuda";
  if (!name.starts_with(kCuda)) return std::nullopt;
  name.remove_prefix(kCuda.size());
  if (name.empty()) return 0;
  const auto index = name[0] == ':' ? parse_int(name.substr(1)) : std::nullopt;
  constexpr int64_t kMost = 1023;  // more GPUs than any machine has
  return index && *index >= 0 && *index <= kMost ? index : std::nullopt;
}

}  // namespace

std::string Device::description() const {
  return model().empty() ? name() : fmt::format("{}, {}", name(), model());
}

std::optional<int64_t> Device::bookable_memory() const {
  // Measured on an H100: 1.7 to 2.8 % more was gone than was booked, as the driver gives memory in
  // pieces of 2 MiB. The code of libraries and graphs take the rest.
  constexpr int64_t kBeside = int64_t{256} << 20;
  constexpr double kShare = 0.03;
  const auto own = own_memory();
  if (!own) return std::nullopt;
  const auto left = static_cast<double>(std::max<int64_t>(0, *own - kBeside));
  return static_cast<int64_t>(left / (1.0 + kShare));
}

void check_device_name(std::string_view name) {
  if (name == "auto" || name == "cpu" || cuda_index(name)) return;
  throw Error(ErrorKind::usage, fmt::format("unknown device {}", name),
              "known devices: auto, cpu, cuda:N with N the number of a GPU");
}

std::unique_ptr<Device> open_device(const std::string& name, const DeviceSettings& settings) {
  check_device_name(name);
  if (const auto index = cuda_index(name)) {
    return open_cuda_device(static_cast<int>(*index), settings);
  }
  return std::make_unique<CpuDevice>(settings.threads, settings.isa);
}

std::string note_on_gpus() {
  return cuda_note();
}

std::vector<DeviceReport> device_reports(const std::vector<fs::path>& environments) {
  return cuda_reports(environments);
}

}  // namespace jackscrew
