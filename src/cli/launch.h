// How the process was started: alone, or together with others that share its work.
#pragma once

namespace jackscrew {

// The number of processes that mpirun or Slurm started together, according to the environment; 1 if
// this one was started alone. Throws Error(usage) where the environment makes no sense.
int launched_ranks();
// The rank of this process among them, according to the environment; 0 where it is not known.
int launched_rank();

}  // namespace jackscrew
