// to += factor * row; compiled once per instruction set (add_row.isa.cc).
#pragma once

#include <cstdint>

namespace jackscrew {

using AddRowKernel = void (*)(float* to, const float* row, float factor, int64_t count);

namespace v3 {
extern const AddRowKernel kAddRow;
}
namespace v4 {
extern const AddRowKernel kAddRow;
}

}  // namespace jackscrew
