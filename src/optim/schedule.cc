#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace jackscrew {

int64_t warmup_from_ratio(double ratio, int64_t total_steps) {
  const auto share = static_cast<int64_t>(std::ceil(ratio * static_cast<double>(total_steps)));
  return std::clamp<int64_t>(share, 0, std::max<int64_t>(0, total_steps - 1));
}

double Schedule::rate(int64_t step) const {
  if (step < warmup_steps) {
    return learning_rate * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  if (kind == ScheduleKind::constant) return learning_rate;
  const double span = static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / span);
  if (kind == ScheduleKind::linear) return learning_rate * (1.0 - progress);
  return learning_rate * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace jackscrew
