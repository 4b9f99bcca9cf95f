// How several ranks share a run (parallel/layout.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/options.h"

namespace jackscrew {

struct RankSettings {
  int64_t data_parallel = 0;  // lanes of a step; 0: one for each replica
  int64_t pipeline_stages = 1;
  std::vector<int64_t> stage_split;  // blocks of each stage; empty: as equal in time as can be
  // The device of each rank, and its memory; empty: all ranks have `device` and `device_memory`.
  // See of_rank() in session/place.h.
  std::vector<std::string> rank_devices;
  std::vector<int64_t> rank_device_memory;                  // bytes
  std::chrono::duration<double> communication_timeout{30};  // seconds

  // Throws Error(usage) for values that are none.
  void read(const OptionSet& options);
};

std::span<const OptionSpec> rank_options();

}  // namespace jackscrew
