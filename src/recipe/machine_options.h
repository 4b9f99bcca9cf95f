// The options of the machine that computes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/options.h"

namespace jackscrew {

struct MachineSettings {
  std::string device;
  int threads = 1;
  std::string isa;
  std::optional<int64_t> device_memory;  // bytes
  std::optional<int64_t> host_memory;    // bytes

  // Throws Error(usage) for an unknown device.
  void read(const OptionSet& options);
};

std::span<const OptionSpec> machine_options();

}  // namespace jackscrew
