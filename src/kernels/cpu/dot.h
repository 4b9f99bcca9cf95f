// Products with few rows (token-by-token generation), compiled once per instruction set
// (dot.isa.cc). They are bound by reading b once, at which oneDNN reaches 35 to 80 % of their
// speed.
#pragma once

#include <cstdint>

#include "base/half.h"

namespace jackscrew {

// Beyond these oneDNN is about as fast: more rows make its packing pay, and an a of several rows
// that does not stay in L1 (32 KiB as floats) is reloaded for every column.
inline constexpr int64_t kDotRows = 4;
inline constexpr int64_t kDotElements = 8192;
JACKSCREW_INLINE bool dot_product_pays(int64_t m, int64_t k) {
  return m == 1 || (m <= kDotRows && m * k <= kDotElements);
}

// c [m, n] (+)= a [m, k] · b [n, k]ᵀ for m <= kDotRows; strides in elements.
template <typename T>
struct DotProduct {
  const T* a;
  const T* b;
  float* c;
  int64_t m, k;
  int64_t a_stride, b_stride, c_stride;
  bool accumulate;
};

// Each computes columns [begin, end) of c; the bits of an element do not depend on the cut.
struct DotKernels {
  void (*f32)(const DotProduct<float>& args, int64_t begin, int64_t end);
  void (*bf16)(const DotProduct<jackscrew::bf16>& args, int64_t begin, int64_t end);
};

namespace v3 {
extern const DotKernels kDotKernels;
}
namespace v4 {
extern const DotKernels kDotKernels;
}

}  // namespace jackscrew
