// Device: the hardware that a run computes on. Only the code behind this interface knows which.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "kernels/ops.h"

namespace jackscrew {

class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual std::string name() const = 0;  // as the option chooses it: "cpu", "cuda:0"
  // The source of the device's memory. The host may access that memory by Ops::copy() only.
  virtual std::unique_ptr<Backing> make_backing() const = 0;
  // Ops allocate from `memory`, which must outlive them, what they need for their whole life. Plan
  // Ops allocate the same from it and from the arenas of their calls; their memory may have any
  // backing.
  virtual std::unique_ptr<Ops> make_ops(Memory& memory) const = 0;
  virtual std::unique_ptr<Ops> make_plan_ops(Memory& memory) const = 0;
  // The product name of a GPU; empty for the CPU.
  virtual std::string model() const { return ""; }
  // Tells a GPU from all others, whatever its number is to this process; empty for the CPU.
  virtual std::string identity() const { return ""; }
  // What the last bits of a GPU's results depend on: its model and its library's version; empty for
  // the CPU, where that is the Ops' isa().
  virtual std::string arithmetic() const { return ""; }
  // The name, and for a GPU its model as well.
  std::string description() const;
  // Free bytes of the device's own memory; nullopt if it computes in the host's.
  virtual std::optional<int64_t> own_memory() const = 0;
  // How much of own_memory() a run may book: the driver takes some beside that.
  std::optional<int64_t> bookable_memory() const;
  // Whether it computes in the host's memory: its Ops read a mapped file as they do the device's
  // memory, and the host reads what they wrote once Ops::finish() has returned.
  virtual bool shares_host_memory() const { return false; }
};

// Whose attention computes the forward pass over bf16 tensors.
enum class AttentionLibrary : bool { own, cudnn };

// A name is "auto", "cpu", or "cuda:N" ("cuda" is "cuda:0"). Throws Error(usage) for any other.
void check_device_name(std::string_view name);

struct DeviceSettings {
  int threads = 1;              // of the host
  IsaLevel isa = IsaLevel::v3;  // of the host
  // Roots of Python environments that may hold a GPU's libraries.
  std::vector<fs::path> environments = {};
  AttentionLibrary attention = AttentionLibrary::own;  // on a GPU
};

// Opens the device of that name; "auto" is the CPU, as long as only one GPU has been tried.
// Throws Error(device) when it is not there or lacks something. What was found is kept for the life
// of the process.
std::unique_ptr<Device> open_device(const std::string& name, const DeviceSettings& settings);

// Which GPU there is, or why there is none, for a user who has chosen neither GPU nor CPU; empty if
// the program was built without code for GPUs. Opens nothing.
std::string note_on_gpus();

// One of the things that were looked for besides the CPU.
struct DeviceReport {
  std::string name;  // "CUDA driver"
  bool found;
  std::string text;  // what was found, or what is missing and what would bring it
};
std::vector<DeviceReport> device_reports(const std::vector<fs::path>& environments);

}  // namespace jackscrew
