// What the program needs of MPI: a table of plain functions, the only contents of
// libjackscrew_mpi.so (mpi_calls.cc). Only that library is linked with an MPI, so that the program
// starts where there is none, and one library can be built for each MPI that a cluster has.
//
// MPI's handles are addresses of its variables or numbers, depending on the implementation: none
// leaves the library. Requests are slots, small numbers that the caller chooses.
#pragma once

#include <cstdint>

namespace jackscrew {

// A request that is done.
struct MpiDone {
  int slot;
  int error;      // 0: none
  int truncated;  // 1: the error is that the message had more bytes than the buffer
  int64_t bytes;  // of a receive
};

// All but library() and error_text() must be called from one thread. Those that return int return
// 0, or an error for error_text().
struct MpiCalls {
  int version;  // kMpiCallsVersion of the source that the library was built from

  const char* (*library)();                   // "Open MPI v4.1.4, package: ..."; before init, too
  void (*error_text)(int error, char* text);  // text: [kMpiTextBytes]

  int (*init)(int* rank, int* ranks);
  int (*host_names)(char* names);  // [ranks, kMpiTextBytes]; every rank calls it
  int (*send)(const void* bytes, int count, int to, int tag, int slot);
  int (*receive)(void* bytes, int count, int from, int tag, int slot);
  // Lets MPI make progress. `done` must have room for all slots; the first `count` of it are filled
  // in, and their slots are free again.
  int (*test)(MpiDone* done, int* count);
  int (*finalize)();
  int (*abort)(int exit_code);  // ends this process and all others
};

inline constexpr int kMpiCallsVersion = 1;
inline constexpr int kMpiTextBytes = 512;  // more than MPI_MAX_ERROR_STRING and _PROCESSOR_NAME

// The only symbol of the library: const MpiCalls* jackscrew_mpi_calls().
using GetMpiCalls = const MpiCalls* (*)();
inline constexpr const char* kGetMpiCalls = "jackscrew_mpi_calls";

}  // namespace jackscrew
