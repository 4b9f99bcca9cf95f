// The one thread pool: OpenMP's. Work is cut into tasks that do not depend on the number of
// threads, so results do not either.
#pragma once

#include <omp.h>

#include <cstdint>
#include <exception>

namespace jackscrew {

// Runs body(task, thread) for task in [0, tasks) on `threads` threads; tasks are handed out in
// order as threads become free. The first exception thrown by a task is rethrown here, after all
// have ended.
template <class Body>
void parallel_for(int threads, int64_t tasks, const Body& body) {
  if (tasks <= 0) return;
  const int team = static_cast<int>(tasks < threads ? tasks : threads);
  std::exception_ptr error;
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
  for (int64_t task = 0; task < tasks; ++task) {
    try {
      body(task, omp_get_thread_num());
    } catch (...) {
#pragma omp critical(jackscrew_parallel_error)
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace jackscrew
