// Finds MPI when a run is started with others, and not before.
#pragma once

#include "parallel/mpi/mpi_calls.h"

namespace jackscrew {

// Loads libjackscrew_mpi.so, which lies beside the program or in ../lib, and with it the MPI of
// this machine, for the life of the process. Throws Error(device) with what is missing.
const MpiCalls& load_mpi();

}  // namespace jackscrew
