// Device: where a run computes. Only what stands behind this door knows which device it is.
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
  // Where the device's memory comes from. The host may look at it by Ops::copy() alone.
  virtual std::unique_ptr<Backing> make_backing() const = 0;
  // Ops take from `memory`, which must outlive them, what they need as long as they live. Those
  // that only plan take the same from it and from the arenas of their calls; their memory may have
  // any backing.
  virtual std::unique_ptr<Ops> make_ops(Memory& memory) const = 0;
  virtual std::unique_ptr<Ops> make_plan_ops(Memory& memory) const = 0;
  // Its name, and that of the model where it is not the CPU.
  virtual std::string description() const = 0;
  // Bytes free in memory of its own; nullopt where it computes in the host's.
  virtual std::optional<int64_t> own_memory() const = 0;
  // Whether its Ops read weights in the map of a file as they do in the device's memory.
  virtual bool reads_maps() const { return false; }
};

// Whose attention computes the forward pass over tensors of bf16.
enum class AttentionLibrary : bool { own, cudnn };

// A name is "auto", "cpu", or "cuda:N" ("cuda" is "cuda:0"). Throws Error(usage) for any other.
void check_device_name(std::string_view name);

struct DeviceSettings {
  int threads = 1;              // of the host
  IsaLevel isa = IsaLevel::v3;  // of the host
  // Roots of Python environments that may hold a GPU's libraries.
  std::vector<fs::path> environments = {};
  AttentionLibrary attention = AttentionLibrary::own;  // a GPU's
};

// Opens the device of that name; "auto" is the CPU, as long as no GPU has been tried.
// Throws Error(device) when it is not there or lacks something. What was found is kept for the life
// of the process.
std::unique_ptr<Device> open_device(const std::string& name, const DeviceSettings& settings);

// Which GPU there is, or why there is none, for a user who has asked for neither GPU nor CPU; empty
// where the program was built without code for any. Opens nothing.
std::string note_on_gpus();

// What was looked for beside the CPU.
struct DeviceReport {
  std::string name;  // "CUDA driver"
  bool found;
  std::string text;  // what was found, or what is missing and what would bring it
};
std::vector<DeviceReport> device_reports(const std::vector<fs::path>& environments);

}  // namespace jackscrew
