// The options of models that are written: merge, export and quantize.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/options.h"

namespace jackscrew {

struct ConversionSettings {
  std::string output;                   // a file; merge, export: or directory
  std::string format;                   // auto, hf, gguf, gguf_adapter, gptq, exl2 or bnb
  std::vector<double> adapter_weights;  // one for each adapter, or empty
  int64_t max_shard_bytes = 0;
  std::optional<double> max_merge_loss;  // nats

  void read(const OptionSet& options);
};

std::span<const OptionSpec> conversion_options();

}  // namespace jackscrew
