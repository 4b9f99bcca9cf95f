// Some steps of LoRA over a model, and all that they leave: for tests that hold them to be the same
// over weights in a format and over the numbers that these stand for.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/support/batches.h"
#include "tests/support/golden.h"

namespace jackscrew {

struct LoraSteps {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> gradients, parameters;  // of the adapter, at the end
  std::map<std::string, std::vector<float>> weights;                // decoded
  std::map<std::string, std::string> formats;                       // of linear layers
};

// A has no gradient in the first step.
inline LoraSteps lora_steps(const ModelFiles& files, const std::string& storage, int64_t steps) {
  const StepBatch batch = step_of({random_micro_batch(files.config.vocab_size, {9, 15}, 5)});
  const auto session = make_session(make_recipe({"method=lora", "lora_rank=4", "device=cpu",
                                                 "product=f32", "storage=" + storage}),
                                    files, training_use(batch.tokens));
  LoraSteps out;
  for (const auto& parameter : session->stage().parameters()) {
    const Weight& weight = *parameter->weight;
    std::vector<float>& values = out.weights[weight.name()];
    values.resize(static_cast<size_t>(weight.size()));
    weight.decode(session->ops(), 0, weight.rows(),
                  Tensor(values.data(), DType::f32, {weight.rows(), weight.cols()}));
    if (weight.spec().kind == WeightKind::linear) {
      out.formats[weight.name()] = weight.format().name();
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    session->accumulate(batch, 1e-2, step);
    out.gradients = state_values(session->stage(), StateRole::gradient);
    const StepResult result = session->update({});
    EXPECT_TRUE(result.finite);
    out.losses.push_back(result.loss);
  }
  out.parameters = state_values(session->stage(), StateRole::parameter);
  return out;
}

// In every bit, and all of the adapter learns.
inline void expect_same_steps(const LoraSteps& kept, const LoraSteps& plain) {
  EXPECT_EQ(kept.weights, plain.weights);
  EXPECT_EQ(kept.losses, plain.losses);
  EXPECT_EQ(kept.gradients, plain.gradients);
  EXPECT_EQ(kept.parameters, plain.parameters);
  for (const auto& [name, values] : kept.gradients) {
    EXPECT_TRUE(std::any_of(values.begin(), values.end(), [](float v) { return v != 0.0f; }))
        << name;
  }
}

}  // namespace jackscrew
