#include "parallel/schedule.h"

#include <algorithm>

#include "base/error.h"

namespace jackscrew {

namespace {

void check_place(int stage, int stages, int64_t micro_batches) {
  if (stage >= 0 && stage < stages && micro_batches >= 0) return;
  fail(ErrorKind::generic, "no schedule for stage {} of {} with {} micro-batches", stage, stages,
       micro_batches);
}

}  // namespace

int64_t flights_of(int stage, int stages, int64_t micro_batches) {
  check_place(stage, stages, micro_batches);
  return std::min<int64_t>(micro_batches, stages - stage);
}

std::vector<Turn> one_forward_one_backward(int stage, int stages, int64_t micro_batches) {
  // This stage and each one after it can hold a micro-batch that has left here and is not back yet.
  const int64_t flights = flights_of(stage, stages, micro_batches);
  std::vector<Turn> turns;
  turns.reserve(static_cast<size_t>(2 * micro_batches));
  for (int64_t i = 0; i < micro_batches + flights - 1; ++i) {
    const int64_t back = i - (flights - 1);
    if (i < micro_batches) turns.push_back({Work::forward, i, i % flights});
    if (back >= 0) turns.push_back({Work::backward, back, back % flights});
  }
  return turns;
}

double bubble_of(int stages, int64_t micro_batches) {
  check_place(0, stages, micro_batches);
  return static_cast<double>(stages - 1) / static_cast<double>(micro_batches + stages - 1);
}

}  // namespace jackscrew
