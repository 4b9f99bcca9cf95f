// The options that name the data of a run, and how sequences are made of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/options.h"

namespace jackscrew {

enum class LongRecord;  // data/dataset.h

struct DataSettings {
  std::vector<std::string> data;
  std::vector<double> data_weights;  // one for each of data, or empty
  std::vector<std::string> eval_data;
  double val_size = 0;
  int64_t max_samples = 0;   // 0: all
  LongRecord long_record{};  // truncate
  int64_t sequence_len = 0;
  bool packing = false;
  bool train_on_inputs = false;

  bool has_evaluation() const { return !eval_data.empty() || val_size > 0; }
  // Throws Error(usage) for values that contradict each other.
  void read(const OptionSet& options);
};

std::span<const OptionSpec> data_options();

}  // namespace jackscrew
