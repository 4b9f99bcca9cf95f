// What the learners of a stage keep, by name.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "model/stage.h"

namespace jackscrew {

inline std::map<std::string, Tensor> states(const Stage& stage, StateRole role) {
  std::map<std::string, Tensor> out;
  stage.visit([&](const StateRef& state) {
    if (state.role == role) out[state.name] = state.view;
  });
  return out;
}

// The values behind states(), copied: they change with every step.
inline std::map<std::string, std::vector<float>> state_values(const Stage& stage, StateRole role) {
  std::map<std::string, std::vector<float>> out;
  for (const auto& [name, view] : states(stage, role)) {
    const float* data = view.data<float>();
    out[name] = std::vector<float>(data, data + view.size());
  }
  return out;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() &&
         std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0;
}

}  // namespace jackscrew
