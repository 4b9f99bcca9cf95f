#include "recipe/machine_options.h"

#include "base/checked.h"
#include "base/parallel.h"
#include "kernels/device.h"
#include "kernels/isa.h"

namespace jackscrew {

namespace {

using enum OptionType;

// More than any machine has processors. With many more, OpenMP ends the program by itself.
constexpr double kMostThreads = 4096;

}  // namespace

std::span<const OptionSpec> machine_options() {
  static const OptionSpec kMachineOptions[] = {
      {.name = "device",
       .type = text,
       .default_text = "auto",
       .help = "where to compute: cpu, cuda:N, or cuda (cuda:0; of several ranks each its own); "
               "auto: cpu",
       .affects_result = false},
      {.name = "threads",
       .type = integer,
       .default_text = "all",
       .help = "CPU threads, up to 4096; all (or 0): as many as the process may use",
       .choices = "all",
       .min = 0,
       .max = kMostThreads,
       .affects_result = false},
      {.name = "isa",
       .type = text,
       .default_text = "auto",
       .help = "CPU instruction set: x86-64-v3, x86-64-v4, x86-64-v4-vnni, x86-64-v4-bf16 or "
               "x86-64-v4-amx; auto: the best of this machine",
       .choices = isa_names().c_str(),
       .affects_result = false},  // checkpoints record the one that was used
      {.name = "device_memory",
       .type = bytes,
       .default_text = "auto",
       .help = "hard limit on device memory, such as 16GiB; auto: what is free",
       .choices = "auto",
       .min = 1,
       .affects_result = false},
      {.name = "host_memory",
       .type = bytes,
       .default_text = "auto",
       .help = "hard limit on host memory beside the device's: masters, what GPUs of several ranks "
               "exchange",
       .choices = "auto",
       .min = 1,
       .affects_result = false},
  };
  return kMachineOptions;
}

void MachineSettings::read(const OptionSet& options) {
  device = options.text("device");
  check_device_name(device);
  const int64_t wanted = options.integer_unless_word("threads").value_or(0);
  threads = wanted > 0 ? narrow<int>(wanted) : usable_threads();
  isa = options.text("isa");
  device_memory = options.bytes_unless_word("device_memory");
  host_memory = options.bytes_unless_word("host_memory");
}

}  // namespace jackscrew
