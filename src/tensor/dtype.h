// Element types of tensors. A type is here only because an op uses it.
#pragma once

#include <cstdint>

namespace jackscrew {

enum class DType : uint8_t {
  f32,
  bf16,
  f16,
  f64,  // partial sums of reductions over whole tensors
  i32,  // token ids, positions, row indices; sums of integer products
  i64,  // counts of a whole run's tokens
  i8,   // codes of integer products
  u8    // bytes of a block format
};

constexpr int64_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::i8:
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "f64";
    case DType::f32:
      return "f32";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i8:
      return "i8";
    case DType::u8:
      return "u8";
  }
  return "?";
}

}  // namespace jackscrew
