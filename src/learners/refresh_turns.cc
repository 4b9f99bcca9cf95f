#include "learners/refresh_turns.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/checked.h"

namespace jackscrew {

namespace {

constexpr int64_t kLongRun = int64_t{1} << 32;  // steps; for more no gap is longer

// Weights in the order in which their subspaces are refreshed: block by block, as van der Corput's
// sequence visits them, first and second half of the model in turn, and so the halves of these. So
// the windows that are open at a time lie in all stages of a pipeline, and with them the memory
// that they take and the time of their refreshes.
std::vector<WeightSpec> in_order_of_refreshes(std::span<const WeightSpec> weights) {
  int64_t blocks = 1;
  for (const WeightSpec& weight : weights) blocks = std::max(blocks, weight.layer + 1);
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(blocks - 1)));
  const auto place_of = [&](int64_t block) {
    int64_t place = 0;
    for (int bit = 0; bit < bits; ++bit) place |= (block >> bit & 1) << (bits - 1 - bit);
    return place;
  };
  std::vector<WeightSpec> order(weights.begin(), weights.end());
  std::ranges::stable_sort(order, {}, [&](const WeightSpec& weight) {
    return weight.layer < 0 ? -1 : place_of(weight.layer);
  });
  return order;
}

}  // namespace

void RefreshTurns::plan(std::span<const WeightSpec> matrices) {
  for (const WeightSpec& matrix : in_order_of_refreshes(matrices)) {
    places_.emplace(matrix.name, std::ssize(places_));
  }
  gap_ = settings_.gap_of(settings_.max_steps);
}

void RefreshTurns::begin_run(int64_t total_steps) {
  if (settings_.max_steps == 0) gap_ = settings_.gap_of(total_steps);
}

int64_t RefreshTurns::offset(int64_t place, int64_t gap) const {
  return settings_.stagger ? gap * place / std::ssize(places_) : 0;
}

RefreshSchedule RefreshTurns::first(const std::string& matrix) const {
  return {.gap = gap_, .next = window() + turn_of(matrix)};
}

// Lazy gaps grow by doubling, up to the longest.
bool RefreshTurns::is_own(const std::string& matrix, const RefreshSchedule& schedule) const {
  const auto times = static_cast<uint64_t>(schedule.gap / gap_);
  const bool gap = schedule.gap % gap_ == 0 && schedule.gap <= settings_.longest_gap_of(gap_) &&
                   (settings_.lazy_overlap > 0.0 ? std::has_single_bit(times) : times == 1);
  return gap && (schedule.next - first(matrix).next) % gap_ == 0;
}

RefreshSchedule RefreshTurns::fitted(const std::string& matrix, int64_t refreshes_done,
                                     int64_t step) const {
  RefreshSchedule schedule = first(matrix);
  schedule.done = refreshes_done;
  schedule.next += gap_ * ceil_div(std::max<int64_t>(0, step - turn_of(matrix)), gap_);
  return schedule;
}

void RefreshTurns::set_next(RefreshSchedule& schedule, int64_t step, double overlap,
                            double chance) const {
  if (settings_.lazy_overlap > 0.0) {
    const bool alike = overlap - chance >= settings_.lazy_overlap * (1.0 - chance);
    schedule.overlaps = alike ? schedule.overlaps + 1 : 0;
    if (schedule.overlaps == 2) {
      // Twice as long or not at all: turns are taken modulo the first gap.
      if (2 * schedule.gap <= settings_.longest_gap_of(gap_)) schedule.gap *= 2;
      schedule.overlaps = 0;
    }
  }
  schedule.next = step + schedule.gap;
}

int64_t RefreshTurns::worst_windows(const std::map<std::string, int64_t>& window_bytes) const {
  std::vector<Turn> turns;
  for (const auto& [matrix, bytes] : window_bytes) turns.push_back({places_.at(matrix), bytes});
  std::ranges::sort(turns, {}, &Turn::place);
  const int64_t longest = settings_.max_steps == 0 ? settings_.gap_of(kLongRun) : gap_;
  int64_t worst = 0;
  for (int64_t gap = gap_; gap <= longest; ++gap)
    worst = std::max(worst, worst_windows(turns, gap));
  return worst;
}

int64_t RefreshTurns::worst_windows(std::span<const Turn> turns, int64_t gap) const {
  const int64_t window = settings_.window_of(gap);
  const auto step_of = [&](size_t i) {
    const auto lap = static_cast<int64_t>(i / turns.size());
    return offset(turns[i % turns.size()].place, gap) + lap * gap;
  };
  // Two laps: windows that open at the end of a gap are open when the next one begins.
  int64_t open = 0, worst = 0;
  size_t oldest = 0;
  for (size_t i = 0; i < 2 * turns.size(); ++i) {
    open += turns[i % turns.size()].bytes;
    for (; step_of(i) - step_of(oldest) >= window; ++oldest) {
      open -= turns[oldest % turns.size()].bytes;
    }
    worst = std::max(worst, open);
  }
  return worst;
}

}  // namespace jackscrew
