// The options of what a run leaves: logs, evaluations, checkpoints, models.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/options.h"

namespace jackscrew {

// When a run ends before its last step.
struct WatchSettings {
  int64_t early_stopping_patience = 0;  // evaluations without a better one; 0: never stops
  double loss_watchdog_threshold = 0;   // of a step's loss; 0: never stops
  int64_t loss_watchdog_patience = 1;   // logged steps in a row above it
};

// A model that train writes beside its result.
struct RunExport {
  std::string text;     // as in the recipe: "gguf:q4_k_m"
  bool gguf = false;    // else a Hugging Face directory
  std::string storage;  // as merge and export take it; "keep" where none is given
};

struct OutputSettings {
  std::string output_dir;
  int64_t logging_steps = 0;
  int64_t eval_steps = 0;          // 0: only before and after the run
  int64_t save_steps = 0;          // 0: none by the count of steps
  int64_t save_total_limit = 0;    // 0: no limit
  std::string resume;              // "auto", "never" or a checkpoint
  std::vector<RunExport> exports;  // of train
  int64_t report_samples = 0;
  bool load_best_model_at_end = false;
  WatchSettings watch;
  int64_t stride = 0;  // 0: sequence_len

  // Throws Error(usage) for an export that is none, or given twice.
  void read(const OptionSet& options);
};

std::span<const OptionSpec> output_options();
std::span<const OptionSpec> evaluation_options();

}  // namespace jackscrew
