// Arithmetic on sizes that cannot overflow silently: it throws Error(generic). Sizes are int64_t
// everywhere.
#pragma once

#include <concepts>
#include <cstdint>

#include "base/error.h"

namespace jackscrew {

inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) fail(ErrorKind::generic, "size overflow: {} x {}", a, b);
  return out;
}

inline int64_t checked_add(int64_t a, int64_t b) {
  int64_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) fail(ErrorKind::generic, "size overflow: {} + {}", a, b);
  return out;
}

// a / b; throws Error(generic) unless b divides a.
inline int64_t div_exact(int64_t a, int64_t b) {
  if (b <= 0 || a % b != 0) fail(ErrorKind::generic, "{} is not a multiple of {}", a, b);
  return a / b;
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

inline int64_t round_up(int64_t a, int64_t b) {
  return checked_mul(ceil_div(a, b), b);
}

// Converts between integer types; throws Error(generic) where the value does not fit.
template <std::integral To, std::integral From>
To narrow(From value) {
  const To out = static_cast<To>(value);
  if (static_cast<From>(out) != value || ((out < To{}) != (value < From{}))) {
    fail(ErrorKind::generic, "value {} does not fit its type", value);
  }
  return out;
}

}  // namespace jackscrew
