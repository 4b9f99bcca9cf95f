#include "kernels/cuda/shared_library.h"

#include <dlfcn.h>

#include <algorithm>

#include "base/error.h"

namespace jackscrew::cuda {

namespace {

// In the order of their names, after what is there already.
void add_children(std::vector<fs::path>& to, const fs::path& parent, std::string_view prefix,
                  const fs::path& below) {
  const auto before = std::ssize(to);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(parent, ignored)) {
    if (entry.path().filename().string().starts_with(prefix)) to.push_back(entry.path() / below);
  }
  std::sort(to.begin() + before, to.end());
}

// Directories that may hold a library, the likeliest first.
std::vector<fs::path> places(const std::vector<fs::path>& environments) {
  std::vector<fs::path> out = {"/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu"};
  add_children(out, "/usr/local", "cuda-", "lib64");
  for (const fs::path& environment : environments) {
    std::vector<fs::path> packages;
    add_children(packages, environment / "lib", "python", "site-packages");
    for (const fs::path& directory : packages) {
      add_children(out, directory / "nvidia", "", "lib");
    }
  }
  return out;
}

// Libraries of another version, for the error.
std::string others(const std::vector<fs::path>& directories, const char* file) {
  std::string out;
  for (const fs::path& directory : directories) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(directory, ignored)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(file)) continue;
      out += fmt::format("{}{}", out.empty() ? "" : ", ", entry.path().string());
    }
  }
  return out;
}

}  // namespace

SharedLibrary::SharedLibrary(const LibraryName& name, const std::vector<fs::path>& environments)
    : name_(name) {
  const std::string wanted = fmt::format("{}.{}", name.file, name.major);
  const std::vector<fs::path> directories = places(environments);
  handle_ = ::dlopen(wanted.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::string broken;  // the first that is there and cannot be loaded
  for (size_t i = 0; handle_ == nullptr && i < directories.size(); ++i) {
    const fs::path path = directories[i] / wanted;
    handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr || !broken.empty()) continue;
    const std::string why = ::dlerror();
    std::error_code ignored;
    if (fs::exists(path, ignored)) {
      broken = fmt::format("{} cannot be loaded: {}", path.string(), why);
    }
  }
  if (handle_ != nullptr) return;
  const std::string found = others(directories, name.file);
  const std::string instead = !broken.empty() ? broken
                              : found.empty() ? "none is found"
                                              : "found is only " + found;
  throw Error(
      ErrorKind::device,
      fmt::format("{} {} is wanted ({}), {}", name.product, name.major, wanted, instead),
      fmt::format("install it, or activate a Python environment with {} (script/setup --cuda)",
                  name.package));
}

std::string SharedLibrary::path(const void* function) const {
  Dl_info info{};
  const bool known = ::dladdr(function, &info) != 0;
  return known && info.dli_fname != nullptr ? info.dli_fname : name_.file;
}

void* SharedLibrary::find(const char* function) const {
  void* const out = ::dlsym(handle_, function);
  if (out == nullptr) fail(ErrorKind::device, "{} lacks {}", name_.product, function);
  return out;
}

std::string version_text(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace jackscrew::cuda
