// Adapters in and out of a running model.
#pragma once

#include <cstring>
#include <string>

#include "formats/peft.h"
#include "tests/support/golden.h"

namespace jackscrew {

// Copies an adapter's tensors over the learned values of the same names, and expects each to be
// there.
inline void load_adapter(const Stage& stage, const PeftAdapter& adapter) {
  const auto parameters = states(stage, StateRole::parameter);
  ASSERT_EQ(parameters.size(), adapter.tensors.size());
  for (const NamedArray& tensor : adapter.tensors) {
    ASSERT_TRUE(parameters.contains(tensor.name)) << tensor.name;
    const Tensor& view = parameters.at(tensor.name);
    ASSERT_EQ((std::vector<int64_t>{view.rows(), view.cols()}), tensor.shape) << tensor.name;
    std::memcpy(view.raw(), tensor.values.data(), static_cast<size_t>(view.bytes()));
  }
}

inline void save_adapter(const Stage& stage, const AdapterDescription& description,
                         const fs::path& directory) {
  PeftConfig config;
  config.r = description.rank;
  config.lora_alpha = description.alpha;
  config.lora_dropout = description.dropout;
  config.use_rslora = description.use_rslora;
  config.target_modules = description.target_modules;
  std::vector<NamedShape> shapes;
  const auto parameters = states(stage, StateRole::parameter);
  for (const auto& [name, view] : parameters) shapes.push_back({name, {view.rows(), view.cols()}});
  PeftWriter writer(directory, config, shapes);
  for (const auto& [name, view] : parameters) {
    writer.write(name, {view.data<float>(), static_cast<size_t>(view.size())});
  }
  writer.commit();
}

}  // namespace jackscrew
