// Golden files (tests/golden/README.md): tiny models with what PyTorch computes for them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/options.h"
#include "data/batch.h"
#include "formats/safetensors.h"
#include "session/session.h"
#include "tests/support/paths.h"
#include "tests/support/states.h"
#include "tests/support/worse.h"

namespace jackscrew {

inline fs::path golden_path(const std::string& name) {
  return fs::path(kTestData) / "golden" / name;
}

class Golden {
 public:
  explicit Golden(const std::string& name) : file_(golden_path(name) / "golden.safetensors") {}

  template <typename T = float>
  std::vector<T> values(const std::string& name) const {
    const SafetensorsEntry* entry = file_.find(name);
    if (entry == nullptr) fail(ErrorKind::model, "golden file lacks {}", name);
    std::vector<T> out(entry->bytes.size() / sizeof(T));
    std::memcpy(out.data(), entry->bytes.data(), entry->bytes.size());
    return out;
  }

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }

  StepBatch batch() const {
    MicroBatch micro;
    micro.ids = values<int32_t>("ids");
    micro.positions = values<int32_t>("positions");
    micro.targets = values<int32_t>("targets");
    micro.cu_seqlens = values<int32_t>("cu_seqlens");
    for (const int32_t target : micro.targets) micro.target_count += target >= 0 ? 1 : 0;
    return {{micro}, micro.target_count, micro.tokens(), 0};
  }

 private:
  SafetensorsFile file_;
};

// max |a - b| / max |b|
inline double relative_error(const float* actual, const std::vector<float>& expected) {
  double difference = 0.0;
  double scale = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = static_cast<double>(expected[i]);
    const double error = std::abs(static_cast<double>(actual[i]) - e);
    difference = worse(difference, error);
    scale = std::max(scale, std::abs(e));
  }
  return scale > 0.0 ? difference / scale : difference;
}

// The settings of "name=value name=value", one by one.
inline std::vector<std::string> settings_of(const std::string& text) {
  std::vector<std::string> settings;
  for (const Assignment& setting : split_settings(text, "")) {
    settings.push_back(setting.name + "=" + setting.text);
  }
  return settings;
}

// A recipe from "name=value" settings, as the command line gives them.
inline Recipe make_recipe(const std::vector<std::string>& settings) {
  return read_recipe(settings, method_tables());
}

// A planned and loaded session.
inline std::unique_ptr<Session> make_session(const Recipe& recipe, const ModelFiles& files,
                                             const SessionUse& use) {
  return std::make_unique<Session>(recipe, files, use, Session::rehearse(recipe, files, use));
}

// A session's use for training on micro-batches of at most `tokens`, and for their logits.
inline SessionUse training_use(int64_t tokens) {
  return {.training = true,
          .tokens = tokens,
          .max_positions = tokens,
          .kv_tokens = 0,
          .logits_rows = tokens};
}

}  // namespace jackscrew
