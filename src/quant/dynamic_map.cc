#include "quant/dynamic_map.h"

#include <algorithm>
#include <vector>

namespace jackscrew {

namespace {

// Each decade from 10^(e - 7) to 10^(e - 6) is cut into equal cells, twice as many as the one
// below; their middles are the values, together with 0 and 1.
DynamicMap make_map(bool with_negatives) {
  constexpr double kPowers[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
  DynamicMap map{};
  std::vector<float> values = {0.0f, 1.0f};
  int32_t cells = with_negatives ? 1 : 2;
  int32_t first = 0;
  for (size_t e = 0; e < 7; ++e) {
    for (int32_t i = 0; i < cells; ++i) {
      const auto value = static_cast<float>(kPowers[e] * (0.1 + 0.9 * (i + 0.5) / cells));
      values.push_back(value);
      if (with_negatives) values.push_back(-value);
    }
    map.decades[e] = {static_cast<float>(cells / (0.9 * kPowers[e])),
                      static_cast<float>(cells / 9.0 - first)};
    first += cells;
    cells *= 2;
  }
  std::sort(values.begin(), values.end());
  std::copy(values.begin(), values.end(), map.values);
  map.zero = with_negatives ? 127 : 0;
  return map;
}

}  // namespace

const DynamicMap& signed_dynamic_map() {
  static const DynamicMap kMap = make_map(true);
  return kMap;
}

const DynamicMap& unsigned_dynamic_map() {
  static const DynamicMap kMap = make_map(false);
  return kMap;
}

}  // namespace jackscrew
