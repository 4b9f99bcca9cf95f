#include "kernels/cuda/cublaslt.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace jackscrew::cuda {

namespace {

constexpr int kMajor = CUDART_VERSION / 1000;  // of the toolkit that the program was built with
constexpr const char* kName = "libcublasLt.so";

void add_children(std::vector<fs::path>& to, const fs::path& parent, std::string_view prefix,
                  const fs::path& below) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(parent, ignored)) {
    if (entry.path().filename().string().starts_with(prefix)) to.push_back(entry.path() / below);
  }
}

// Directories that may hold the library, the likeliest first.
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
  std::sort(out.begin() + 2, out.end());
  return out;
}

template <class Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function == nullptr) fail(ErrorKind::device, "cuBLASLt lacks {}", name);
}

CublasLt functions_of(void* library) {
  CublasLt out{};
  find(library, "cublasLtGetVersion", out.version);
  find(library, "cublasLtCreate", out.create);
  find(library, "cublasLtDestroy", out.destroy);
  find(library, "cublasLtMatmulDescCreate", out.create_description);
  find(library, "cublasLtMatmulDescDestroy", out.destroy_description);
  find(library, "cublasLtMatmulDescSetAttribute", out.set_description);
  find(library, "cublasLtMatrixLayoutCreate", out.create_layout);
  find(library, "cublasLtMatrixLayoutDestroy", out.destroy_layout);
  find(library, "cublasLtMatmulPreferenceCreate", out.create_preference);
  find(library, "cublasLtMatmulPreferenceDestroy", out.destroy_preference);
  find(library, "cublasLtMatmulPreferenceSetAttribute", out.set_preference);
  find(library, "cublasLtMatmulAlgoGetHeuristic", out.find_algorithms);
  find(library, "cublasLtMatmul", out.multiply);
  Dl_info info{};
  const bool known = ::dladdr(reinterpret_cast<const void*>(out.version), &info) != 0;
  out.path = known && info.dli_fname != nullptr ? info.dli_fname : kName;
  return out;
}

// Libraries of another version, for the error.
std::string others(const std::vector<fs::path>& directories) {
  std::string out;
  for (const fs::path& directory : directories) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(directory, ignored)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(kName)) continue;
      out += fmt::format("{}{}", out.empty() ? "" : ", ", entry.path().string());
    }
  }
  return out;
}

CublasLt search(const std::vector<fs::path>& environments) {
  const std::string wanted = fmt::format("{}.{}", kName, kMajor);
  const std::vector<fs::path> directories = places(environments);
  void* library = ::dlopen(wanted.c_str(), RTLD_NOW | RTLD_LOCAL);
  for (size_t i = 0; library == nullptr && i < directories.size(); ++i) {
    library = ::dlopen((directories[i] / wanted).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library != nullptr) return functions_of(library);
  const std::string found = others(directories);
  throw Error(ErrorKind::device,
              fmt::format("cuBLASLt {} is wanted ({}), {}", kMajor, wanted,
                          found.empty() ? "none is found" : "found is only " + found),
              fmt::format("install CUDA {0}'s libraries, or activate a Python environment with "
                          "nvidia-cublas of CUDA {0} (script/setup --cuda)",
                          kMajor));
}

}  // namespace

const CublasLt& open_cublaslt(const std::vector<fs::path>& environments) {
  static const CublasLt kLibrary = search(environments);
  return kLibrary;
}

}  // namespace jackscrew::cuda
