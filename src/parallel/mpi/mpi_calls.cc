// The source of libjackscrew_mpi.so, for the MPI that it is compiled with.
#include "parallel/mpi/mpi_calls.h"

// MPI 3.0 removed the C++ interface; some headers still declare it unless told otherwise.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <array>
#include <cstring>
#include <vector>

namespace jackscrew {

namespace {

static_assert(MPI_MAX_ERROR_STRING <= kMpiTextBytes && MPI_MAX_PROCESSOR_NAME <= kMpiTextBytes);

// Used by the one thread that calls MPI.
struct Slots {
  std::vector<MPI_Request> requests;  // [slots]; MPI_REQUEST_NULL: free
  std::vector<int> indices;           // [slots]: MPI_Testsome's output, the slots that are done
  std::vector<MPI_Status> statuses;   // [slots]: their statuses
};
Slots slots;

const char* library() {
  static std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text = [] {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> out{};
    int length = 0;
    MPI_Get_library_version(out.data(), &length);
    return out;
  }();
  return text.data();
}

void error_text(int error, char* text) {
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) std::strcpy(text, "unknown error");
}

int init(int* rank, int* ranks) {
  int provided = 0;
  if (const int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided)) {
    return error;
  }
  if (provided < MPI_THREAD_FUNNELED) return MPI_ERR_OTHER;
  if (const int error = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)) return error;
  if (const int error = MPI_Comm_rank(MPI_COMM_WORLD, rank)) return error;
  return MPI_Comm_size(MPI_COMM_WORLD, ranks);
}

int host_names(char* names) {
  std::array<char, kMpiTextBytes> own{};
  int length = 0;
  if (const int error = MPI_Get_processor_name(own.data(), &length)) return error;
  return MPI_Allgather(own.data(), kMpiTextBytes, MPI_CHAR, names, kMpiTextBytes, MPI_CHAR,
                       MPI_COMM_WORLD);
}

MPI_Request* request_of(int slot) {
  const auto wanted = static_cast<size_t>(slot) + 1;
  if (slots.requests.size() < wanted) {
    slots.requests.resize(wanted, MPI_REQUEST_NULL);
    slots.indices.resize(wanted);
    slots.statuses.resize(wanted);
  }
  return &slots.requests[static_cast<size_t>(slot)];
}

int send(const void* bytes, int count, int to, int tag, int slot) {
  return MPI_Isend(bytes, count, MPI_BYTE, to, tag, MPI_COMM_WORLD, request_of(slot));
}

int receive(void* bytes, int count, int from, int tag, int slot) {
  return MPI_Irecv(bytes, count, MPI_BYTE, from, tag, MPI_COMM_WORLD, request_of(slot));
}

MpiDone describe(int slot, const MPI_Status& status, bool has_error) {
  MpiDone out{.slot = slot, .error = has_error ? status.MPI_ERROR : 0, .truncated = 0, .bytes = 0};
  if (out.error != MPI_SUCCESS) {
    int kind = 0;
    MPI_Error_class(out.error, &kind);
    out.truncated = kind == MPI_ERR_TRUNCATE ? 1 : 0;
    return out;
  }
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  out.bytes = bytes;
  return out;
}

int test(MpiDone* done, int* count) {
  *count = 0;
  int found = 0;
  const int error = MPI_Testsome(static_cast<int>(slots.requests.size()), slots.requests.data(),
                                 &found, slots.indices.data(), slots.statuses.data());
  if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) return error;
  if (found == MPI_UNDEFINED) return MPI_SUCCESS;  // no slot is in use
  for (int i = 0; i < found; ++i) {
    const int slot = slots.indices[static_cast<size_t>(i)];
    done[i] = describe(slot, slots.statuses[static_cast<size_t>(i)], error == MPI_ERR_IN_STATUS);
  }
  *count = found;
  return MPI_SUCCESS;
}

int finalize() {
  return MPI_Finalize();
}

int abort(int exit_code) {
  return MPI_Abort(MPI_COMM_WORLD, exit_code);
}

}  // namespace
}  // namespace jackscrew

extern "C" __attribute__((visibility("default"))) const jackscrew::MpiCalls* jackscrew_mpi_calls() {
  using namespace jackscrew;
  static const MpiCalls kCalls = {.version = kMpiCallsVersion,
                                  .library = library,
                                  .error_text = error_text,
                                  .init = init,
                                  .host_names = host_names,
                                  .send = send,
                                  .receive = receive,
                                  .test = test,
                                  .finalize = finalize,
                                  .abort = jackscrew::abort};
  return &kCalls;
}
