// Libraries that the program is not linked with and looks for when it runs.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"

namespace jackscrew::cuda {

struct LibraryName {
  const char* product;  // "cuBLASLt"
  const char* file;     // "libcublasLt.so"
  int major;            // the version that is wanted
  std::string package;  // the package of pip that has it
};

class SharedLibrary {
 public:
  // Looks where the system's loader does, in the usual places of toolkits, then among the Python
  // wheels of these environments; takes the first of the right major version, for the life of the
  // process. Throws Error(device) with what was found instead, or why the first did not load.
  SharedLibrary(const LibraryName& name, const std::vector<fs::path>& environments);

  void* handle() const { return handle_; }  // as dlopen() gives it
  // The file that has this function.
  std::string path(const void* function) const;

  // Throws Error(device) where it is not there.
  template <class Function>
  void find(const char* function, Function*& to) const {
    to = reinterpret_cast<Function*>(find(function));
  }

 private:
  void* find(const char* function) const;

  LibraryName name_;
  void* handle_ = nullptr;
};

// "9.24.1" for 92401, the form in which NVIDIA's libraries give their version.
std::string version_text(size_t version);

}  // namespace jackscrew::cuda
