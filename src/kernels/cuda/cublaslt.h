// cuBLASLt, loaded at run time. The few declarations that are needed are repeated here, with the
// values of NVIDIA's header of CUDA 12 and 13 (whose ABIs agree in this), so that the program
// builds without that header and runs without the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"

namespace jackscrew::cuda {

using CublasLtHandle = struct CublasLtContext*;
using CublasLtDescription = struct CublasLtDescriptionOpaque*;
using CublasLtLayout = struct CublasLtLayoutOpaque*;
using CublasLtPreference = struct CublasLtPreferenceOpaque*;

struct CublasLtAlgorithm {
  uint64_t data[8];
};
struct CublasLtHeuristic {
  CublasLtAlgorithm algorithm;
  size_t workspace;  // bytes
  int status;
  float waves;
  int reserved[4];
};

inline constexpr int kCublasCompute32F = 68;  // IEEE f32 for f32 operands: no TF32
inline constexpr int kCudaR32F = 0;
inline constexpr int kCudaR16BF = 14;
inline constexpr int kCublasNone = 0, kCublasTransposed = 1;
enum CublasLtDescriptionAttribute : int { kCublasLtTransposeA = 3, kCublasLtTransposeB = 4 };
enum CublasLtPreferenceAttribute : int {
  kCublasLtMaxWorkspace = 1,
  kCublasLtReductionSchemes = 3,
  kCublasLtMinAlignmentA = 5,
  kCublasLtMinAlignmentB = 6,
  kCublasLtMinAlignmentC = 7,
  kCublasLtMinAlignmentD = 8
};

// Functions return 0 for success.
struct CublasLt {
  std::string path;
  size_t (*version)();  // 10000 * major + 100 * minor + patch
  int (*create)(CublasLtHandle*);
  int (*destroy)(CublasLtHandle);
  int (*create_description)(CublasLtDescription*, int compute_type, int scale_type);
  int (*destroy_description)(CublasLtDescription);
  int (*set_description)(CublasLtDescription, CublasLtDescriptionAttribute, const void*, size_t);
  // For column-major matrices, with columns `stride` elements apart.
  int (*create_layout)(CublasLtLayout*, int type, uint64_t rows, uint64_t columns, int64_t stride);
  int (*destroy_layout)(CublasLtLayout);
  int (*create_preference)(CublasLtPreference*);
  int (*destroy_preference)(CublasLtPreference);
  int (*set_preference)(CublasLtPreference, CublasLtPreferenceAttribute, const void*, size_t);
  int (*find_algorithms)(CublasLtHandle, CublasLtDescription, CublasLtLayout a, CublasLtLayout b,
                         CublasLtLayout c, CublasLtLayout d, CublasLtPreference, int wanted,
                         CublasLtHeuristic* found, int* count);
  int (*multiply)(CublasLtHandle, CublasLtDescription, const void* alpha, const void* a,
                  CublasLtLayout, const void* b, CublasLtLayout, const void* beta, const void* c,
                  CublasLtLayout, void* d, CublasLtLayout, const CublasLtAlgorithm*,
                  void* workspace, size_t workspace_bytes, void* stream);
};

// Loads the library at the first call, as a SharedLibrary; throws Error(device) as that does.
const CublasLt& open_cublaslt(const std::vector<fs::path>& environments);

}  // namespace jackscrew::cuda
