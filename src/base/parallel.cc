#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>
#include <vector>

namespace jackscrew {

namespace {

// Lets waiting threads end however a scope is left.
struct Release {
  std::latch& latch;
  ~Release() { latch.count_down(); }
};

std::atomic<int> found{1};  // so many threads can compute at once

}  // namespace

void try_threads(int count) {
  std::latch tried(1);
  std::vector<std::jthread> started;
  const Release release{tried};
  for (int i = 0; i < count; ++i) started.emplace_back([&tried] { tried.wait(); });
}

void require_threads(int threads) {
  if (threads <= found.load()) return;
  try_threads(threads - 1);
  found = threads;
}

int most_threads() {
  return found.load();
}

int usable_threads() {
  return std::min({omp_get_num_procs(), omp_get_max_threads(), omp_get_thread_limit()});
}

}  // namespace jackscrew
