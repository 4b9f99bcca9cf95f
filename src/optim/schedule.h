// Learning-rate schedules, as in transformers' get_*_schedule_with_warmup.
#pragma once

#include <cstdint>

#include "base/choices.h"

namespace jackscrew {

enum class ScheduleKind { constant, linear, cosine };

// As lr_scheduler_type has them.
inline constexpr Choices kSchedules("constant linear cosine",
                                    std::array{ScheduleKind::constant, ScheduleKind::linear,
                                               ScheduleKind::cosine});

// The warm-up steps: `ratio` of all steps, rounded up as transformers does, but fewer than all: the
// first step has the rate 0, and a run of one step would learn nothing.
int64_t warmup_from_ratio(double ratio, int64_t total_steps);

struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double learning_rate = 0.0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;

  // The rate of step `step`, counted from 0: rises linearly from 0 over the warm-up, then stays
  // (constant, which is transformers' constant_with_warmup), falls linearly to 0, or follows half a
  // cosine to 0.
  double rate(int64_t step) const;
};

}  // namespace jackscrew
