// How the process was started: alone, or with others that are to work together.
#pragma once

namespace jackscrew {

// The number of processes that mpirun or Slurm started together, as their environment says; 1 where
// this one was started alone. Throws Error(usage) where the environment makes no sense.
int launched_ranks();
// The rank of this process among them, as their environment says; 0 where that is not known.
int launched_rank();

}  // namespace jackscrew
