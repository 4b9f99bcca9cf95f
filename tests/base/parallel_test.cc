// The thread pool.
#include "base/parallel.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <vector>

namespace jackscrew {
namespace {

// Fewer tasks than threads must not end threads, to start others for the next tasks.
TEST(ParallelFor, KeepsItsThreads) {
  std::mutex mutex;
  std::set<pid_t> seen;
  const auto note = [&](int64_t, int) {
    const std::lock_guard lock(mutex);
    seen.insert(::gettid());
  };
  for (int round = 0; round < 50; ++round) {
    for (const int64_t tasks : {64, 3, 1, 2}) parallel_for(4, tasks, note);
  }
  EXPECT_LE(seen.size(), 4u);
}

TEST(ParallelFor, UsesNoMoreThreadsThanOpenMpIsAllowed) {
  const int allowed = omp_get_max_threads();
  omp_set_num_threads(omp_get_num_procs() + 1);
  EXPECT_EQ(usable_threads(), omp_get_num_procs());
  omp_set_num_threads(1);  // as OMP_NUM_THREADS=1 does
  EXPECT_EQ(usable_threads(), 1);
  omp_set_num_threads(allowed);
}

TEST(ParallelFor, DoesEachTaskOnce) {
  for (const int64_t tasks : {0, 1, 2, 5, 100}) {
    std::vector<std::atomic<int>> done(static_cast<size_t>(tasks));
    parallel_for(4, tasks, [&](int64_t task, int thread) {
      ++done[static_cast<size_t>(task)];
      EXPECT_LT(thread, 4);
    });
    for (const auto& count : done) EXPECT_EQ(count, 1);
  }
}

}  // namespace
}  // namespace jackscrew
