#include "parallel/mpi/mpi_library.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"
#include "parallel/transport.h"

namespace jackscrew {

namespace {

constexpr const char* kLibrary = "libjackscrew_mpi.so";

[[noreturn]] void refuse_library(const std::string& why, const char* hint) {
  throw Error(ErrorKind::device, fmt::format("MPI cannot be loaded: {}", why), hint);
}

const MpiCalls* open_library() {
  // Found by the program's RPATH. Global, because Open MPI's plugins look up its symbols there.
  void* const handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const std::string why = ::dlerror();
    // The linker names first what it did not find: this library, or one of MPI's.
    refuse_library(why, why.starts_with(kLibrary)
                            ? "it belongs beside the program: copy it, too; a build without MPI "
                              "has none (script/setup --mpi, then build again)"
                            : "install Open MPI (Debian: openmpi-bin), the one that mpirun is of");
  }
  constexpr const char* kOther = "install the library of this program's build beside it";
  void* const symbol = ::dlsym(handle, kGetMpiCalls);
  if (symbol == nullptr) refuse_library(fmt::format("{} lacks {}", kLibrary, kGetMpiCalls), kOther);
  const MpiCalls* const calls = reinterpret_cast<GetMpiCalls>(symbol)();
  if (calls->version != kMpiCallsVersion) {
    refuse_library(fmt::format("{} is of another version of this program", kLibrary), kOther);
  }
  return calls;
}

}  // namespace

const MpiCalls& load_mpi() {
  static const MpiCalls* const kCalls = open_library();
  return *kCalls;
}

TransportReport transport_report() {
  try {
    const std::string library = load_mpi().library();
    // The rest of the text tells who built it.
    return {.found = true, .text = library.substr(0, library.find_first_of(",\n"))};
  } catch (const Error& error) {
    return {.found = false, .text = fmt::format("{} ({})", error.what(), error.hint())};
  }
}

}  // namespace jackscrew
