// The options of quantize.
#pragma once

#include <cstdint>
#include <span>

#include "base/options.h"

namespace jackscrew {

struct QuantiseSettings {
  double bits = 0;
  int64_t head_bits = 0;
  int64_t group_size = 0;   // -1: a whole row
  bool compensates = true;  // rounding=gptq
  bool desc_act = false;
  bool sym = true;
  double damp_percent = 0;  // a share, not per cent
  int64_t calibration_sequences = 0;
  bool dry_run = false;

  void read(const OptionSet& options);
};

std::span<const OptionSpec> quantise_options();

// The most that the option bits can be.
inline constexpr double kMostBits = 8.0;

}  // namespace jackscrew
