#include "cli/launch.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace jackscrew {

namespace {

int number_of(const char* variable, std::string_view text, int least) {
  int out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error == std::errc() && end == text.data() + text.size() && out >= least) return out;
  fail(ErrorKind::usage, "{}=\"{}\" in the environment is not a valid rank or number of processes",
       variable, text);
}

}  // namespace

int launched_ranks() {
  // Open MPI's mpirun; MPICH's mpirun, or Slurm's plugin for PMI-2.
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (const char* const text = std::getenv(variable)) return number_of(variable, text, 1);
  }
  // Slurm's plugin for PMIx; without it, srun starts processes that do not know of each other.
  constexpr const char* kTasks = "SLURM_STEP_NUM_TASKS";
  const char* const tasks = std::getenv(kTasks);
  return std::getenv("PMIX_RANK") != nullptr && tasks != nullptr ? number_of(kTasks, tasks, 1) : 1;
}

int launched_rank() {
  // The same launchers in the same order.
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    if (const char* const text = std::getenv(variable)) return number_of(variable, text, 0);
  }
  return 0;
}

}  // namespace jackscrew
