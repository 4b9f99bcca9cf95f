// What the fuzz targets share: files made of the bytes, and the one way in which a parser may fail.
//
// A target defines jackscrew::parse_input(); libFuzzer calls it with what it makes of the corpus.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace jackscrew {

void parse_input(std::string_view bytes);

// Runs a parser on what it may refuse: by an Error, and by nothing else.
template <class Parse>
bool accepts(const Parse& parse) {
  try {
    parse();
    return true;
  } catch (const Error& error) {
    if (std::string_view(error.what()).empty()) std::abort();
    return false;
  }
}

// A directory for the files of this process, in memory where the system has that.
inline const fs::path& directory() {
  static const fs::path kDirectory = [] {
    const char* named = std::getenv("TMPDIR");
    std::string path = std::string(named != nullptr ? named : "/dev/shm") + "/fuzz_XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) std::abort();
    return path;
  }();
  return kDirectory;
}

// Makes a file in it and returns its path.
inline fs::path write_file(const fs::path& name, std::string_view bytes) {
  const fs::path path = directory() / name;
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size() ||
      std::fclose(file) != 0) {
    std::abort();
  }
  return path;
}

}  // namespace jackscrew

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  jackscrew::parse_input({reinterpret_cast<const char*>(data), size});
  return 0;
}
