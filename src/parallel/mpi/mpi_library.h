// Loads MPI, only when a run is started with others.
#pragma once

#include "parallel/mpi/mpi_calls.h"

namespace jackscrew {

// Loads libjackscrew_mpi.so, which lies beside the program or in ../lib, and with it the MPI of
// this machine, for the life of the process. Throws Error(device) naming what is missing.
const MpiCalls& load_mpi();

}  // namespace jackscrew
