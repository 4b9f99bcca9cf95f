// The options of steps, their learning rates and the optimizer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/options.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

namespace jackscrew {

struct ScheduleSettings {
  int64_t micro_batch_size = 0;
  int64_t gradient_accumulation_steps = 0;
  int64_t max_steps = 0;  // 0: by epochs
  double num_train_epochs = 0;
  double learning_rate = 0;
  ScheduleKind lr_schedule = ScheduleKind::cosine;
  double warmup_ratio = 0;
  std::optional<int64_t> warmup_steps;  // takes precedence over the ratio
  WeightDecay weight_decay;
  double max_grad_norm = 0;  // 0: no clipping
  bool clip_each_weight = false;
  double adam_beta1 = 0;
  double adam_beta2 = 0;
  double adam_epsilon = 0;
  uint64_t seed = 0;

  // Throws Error(usage) for values that contradict each other.
  void read(const OptionSet& options);
};

std::span<const OptionSpec> schedule_options();

// Beside or without which other option this one has no effect on a run: " beside max_steps";
// nullptr where it has one.
const char* without_effect(const OptionSet& options, std::string_view name);

// What to warn of where a run is to learn at a rate that nobody means; empty for any other.
std::string doubt_of_rate(double learning_rate);

}  // namespace jackscrew
