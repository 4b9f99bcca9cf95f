// The one thread pool: OpenMP's. Results do not depend on the number of threads: what a task
// computes does not depend on how work is cut into tasks, or the cut does not on threads.
#pragma once

#include <omp.h>

#include <cstdint>
#include <exception>

namespace jackscrew {

// Starts so many threads that all live at once, and ends them. Throws std::system_error where the
// system does not let them live, for which libgomp would end the process.
void try_threads(int count);

// Throws as try_threads() where so many threads cannot compute at once, the caller among them.
// Looks once for each higher number.
void require_threads(int threads);

// As many threads as the process may use: one for each of its processors, or as many as
// OMP_NUM_THREADS or OMP_THREAD_LIMIT allows where that is less.
int usable_threads();

// The most threads that have computed at once so far, of which require_threads() was asked.
int most_threads();

// Runs body(task, thread) for task in [0, tasks) on `threads` threads; tasks are handed out in
// order as threads become free. The first exception thrown by a task is rethrown here, after all
// have ended.
template <class Body>
void parallel_for(int threads, int64_t tasks, const Body& body) {
  if (tasks <= 0) return;
  if (tasks == 1) return body(int64_t{0}, 0);
  require_threads(threads);
  std::exception_ptr error;
  // Of all threads, even for fewer tasks: libgomp ends the threads that a smaller team leaves out,
  // and starts them anew for the next.
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
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
