#include "kernels/cuda/cublaslt.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "kernels/cuda/shared_library.h"

namespace jackscrew::cuda {

namespace {

constexpr int kMajor = CUDART_VERSION / 1000;  // of the toolkit that the program was built with

CublasLt search(const std::vector<fs::path>& environments) {
  const SharedLibrary library(
      {"cuBLASLt", "libcublasLt.so", kMajor, fmt::format("nvidia-cublas of CUDA {}", kMajor)},
      environments);
  CublasLt out{};
  library.find("cublasLtGetVersion", out.version);
  library.find("cublasLtCreate", out.create);
  library.find("cublasLtDestroy", out.destroy);
  library.find("cublasLtMatmulDescCreate", out.create_description);
  library.find("cublasLtMatmulDescDestroy", out.destroy_description);
  library.find("cublasLtMatmulDescSetAttribute", out.set_description);
  library.find("cublasLtMatrixLayoutCreate", out.create_layout);
  library.find("cublasLtMatrixLayoutDestroy", out.destroy_layout);
  library.find("cublasLtMatmulPreferenceCreate", out.create_preference);
  library.find("cublasLtMatmulPreferenceDestroy", out.destroy_preference);
  library.find("cublasLtMatmulPreferenceSetAttribute", out.set_preference);
  library.find("cublasLtMatmulAlgoGetHeuristic", out.find_algorithms);
  library.find("cublasLtMatmul", out.multiply);
  out.path = library.path(reinterpret_cast<const void*>(out.version));
  return out;
}

}  // namespace

const CublasLt& open_cublaslt(const std::vector<fs::path>& environments) {
  static const CublasLt kLibrary = search(environments);
  return kLibrary;
}

}  // namespace jackscrew::cuda
