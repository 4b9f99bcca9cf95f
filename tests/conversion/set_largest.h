// Gives a matrix of a model values of another size.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/file.h"
#include "formats/safetensors.h"

namespace jackscrew {

// Scales an F32 tensor of model.safetensors so that its largest magnitude is about `largest`.
inline void set_largest(const fs::path& directory, const std::string& name, float largest) {
  const fs::path path = directory / "model.safetensors";
  std::string text = read_text(path);
  {
    const SafetensorsFile file(path);
    const SafetensorsEntry* entry = file.find(name);
    std::vector<float> values(entry->bytes.size() / sizeof(float));
    std::memcpy(values.data(), entry->bytes.data(), entry->bytes.size());
    float most = 0.0f;
    for (const float value : values) most = std::max(most, std::abs(value));
    for (float& value : values) value = value / most * largest;
    // Behind the header the tensors lie one after another, to the end of the file.
    const std::vector<SafetensorsEntry>& all = file.entries();
    const uint8_t* end = all.back().bytes.data() + all.back().bytes.size();
    const auto from_end = static_cast<size_t>(end - entry->bytes.data());
    std::memcpy(text.data() + text.size() - from_end, values.data(), entry->bytes.size());
  }
  write_text_atomic(path, text);
}

}  // namespace jackscrew
