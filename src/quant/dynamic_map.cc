#include "quant/dynamic_map.h"

#include <algorithm>
#include <vector>

namespace jackscrew {

namespace {

// Each decade from 10^(e - 7) to 10^(e - 6) is cut into equal cells, twice as many as the one
// below; their middles are the values, together with 0 and 1.
DynamicMap make_map(bool with_negatives) {
  constexpr double kPowers[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
  std::vector<float> values = {0.0f, 1.0f};
  int32_t cells = with_negatives ? 1 : 2;
  for (const double power : kPowers) {
    for (int32_t i = 0; i < cells; ++i) {
      const auto value = static_cast<float>(power * (0.1 + 0.9 * (i + 0.5) / cells));
      values.push_back(value);
      if (with_negatives) values.push_back(-value);
    }
    cells *= 2;
  }
  std::sort(values.begin(), values.end());
  DynamicMap map{};
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
