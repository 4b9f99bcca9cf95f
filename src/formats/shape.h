// Unchecked shapes, as files declare them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace jackscrew {

// The number of elements; 1 for an empty shape. nullopt for a negative extent or an overflow.
inline std::optional<int64_t> shape_elements(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(product, extent, &product)) return std::nullopt;
  }
  return product;
}

// "[512, 576]"
inline std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace jackscrew
