#include "model/rope.h"

#include <cmath>
#include <numbers>

namespace jackscrew {

namespace {

// Llama 3.1's rule: wavelengths longer than the original context divided by low_freq_factor are
// stretched by `factor`, those shorter than by high_freq_factor kept, the rest blended.
double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const double context = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < context / scaling.high_freq_factor) return frequency;
  if (wavelength > context / scaling.low_freq_factor) return frequency / scaling.factor;
  const double blend = (context / wavelength - scaling.low_freq_factor) /
                       (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - blend) * frequency / scaling.factor + blend * frequency;
}

}  // namespace

std::vector<float> rope_frequencies(const ModelConfig& config) {
  const int64_t half = div_exact(config.head_dim, 2);
  std::vector<float> frequencies;
  for (int64_t i = 0; i < half; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim);
    double frequency = 1.0 / std::pow(config.rope_theta, exponent);
    switch (config.rope_scaling.kind) {
      case RopeScaling::Kind::none:
        break;
      case RopeScaling::Kind::linear:
        frequency /= config.rope_scaling.factor;
        break;
      case RopeScaling::Kind::llama3:
        frequency = llama3_frequency(frequency, config.rope_scaling);
        break;
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

RopeTable make_rope_table(const ModelConfig& config, int64_t max_positions, Memory& memory,
                          Ops& ops) {
  const std::vector<float> frequencies = rope_frequencies(config);
  const auto half = static_cast<int64_t>(frequencies.size());
  RopeTable table{OwnedTensor(memory, Purpose::workspace, DType::f32, {max_positions, half}),
                  OwnedTensor(memory, Purpose::workspace, DType::f32, {max_positions, half})};
  if (ops.plans_only()) return table;
  std::vector<float> cosine;
  std::vector<float> sine;
  for (int64_t position = 0; position < max_positions; ++position) {
    for (const float frequency : frequencies) {
      const auto angle = static_cast<double>(static_cast<float>(position) * frequency);
      cosine.push_back(static_cast<float>(std::cos(angle)));
      sine.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  ops.copy(table.cosine.view(), Tensor(cosine.data(), DType::f32, {max_positions, half}));
  ops.copy(table.sine.view(), Tensor(sine.data(), DType::f32, {max_positions, half}));
  return table;
}

}  // namespace jackscrew
