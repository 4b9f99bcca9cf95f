#include "conversion/add_row.h"

namespace jackscrew::JACKSCREW_ISA {

namespace {

void add_row(float* to, const float* row, float factor, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] += factor * row[i];
}

}  // namespace

extern const AddRowKernel kAddRow = add_row;

}  // namespace jackscrew::JACKSCREW_ISA
