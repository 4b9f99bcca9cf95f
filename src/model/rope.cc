#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace jackscrew {

namespace {

// The base of NTK-aware scaling by the length of the sequence, as in transformers' "dynamic".
double dynamic_base(const ModelConfig& config, int64_t positions) {
  const auto dim = static_cast<double>(config.head_dim);
  const auto trained = static_cast<double>(config.max_position_embeddings);
  const double length = std::max(static_cast<double>(positions), trained);
  const double factor = config.rope_scaling.factor;
  return config.rope_theta *
         std::pow(factor * length / trained - (factor - 1.0), dim / (dim - 2.0));
}

// YaRN's ramp over the pairs (Peng et al. 2023, section 3.2): 0 where a frequency is kept, 1 where
// it is divided by `factor`.
class YarnRamp {
 public:
  explicit YarnRamp(const ModelConfig& config) {
    const RopeScaling& scaling = config.rope_scaling;
    const auto dim = static_cast<double>(config.head_dim);
    // The (fractional) index of the pair that makes so many rotations within the original context.
    const auto pair_of = [&](double rotations) {
      const auto context = static_cast<double>(scaling.original_max_position_embeddings);
      return dim * std::log(context / (rotations * 2.0 * std::numbers::pi)) /
             (2.0 * std::log(config.rope_theta));
    };
    double low = pair_of(scaling.beta_fast);
    double high = pair_of(scaling.beta_slow);
    if (scaling.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low_ = std::max(low, 0.0);
    high_ = std::min(high, dim - 1.0);
    if (low_ == high_) high_ += 0.001;  // avoids the division by zero as transformers does
  }
  double operator()(int64_t pair) const {
    return std::clamp((static_cast<double>(pair) - low_) / (high_ - low_), 0.0, 1.0);
  }

 private:
  double low_, high_;
};

}  // namespace

double llama3_kept_share(double frequency, const RopeScaling& scaling) {
  const auto context = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < context / scaling.high_freq_factor) return 1.0;
  if (wavelength > context / scaling.low_freq_factor) return 0.0;
  return (context / wavelength - scaling.low_freq_factor) /
         (scaling.high_freq_factor - scaling.low_freq_factor);
}

std::vector<float> rope_frequencies(const ModelConfig& config, int64_t max_positions) {
  const RopeScaling& scaling = config.rope_scaling;
  const bool dynamic = scaling.kind == RopeScaling::Kind::dynamic;
  const double base = dynamic ? dynamic_base(config, max_positions) : config.rope_theta;
  const YarnRamp yarn_ramp(config);
  const int64_t half = div_exact(config.head_dim, 2);
  std::vector<float> frequencies;
  for (int64_t i = 0; i < half; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim);
    double frequency = 1.0 / std::pow(base, exponent);
    switch (scaling.kind) {
      case RopeScaling::Kind::none:
      case RopeScaling::Kind::dynamic:
        break;
      case RopeScaling::Kind::linear:
        frequency /= scaling.factor;
        break;
      case RopeScaling::Kind::llama3: {
        const double kept = llama3_kept_share(frequency, scaling);
        frequency = (1.0 - kept) * frequency / scaling.factor + kept * frequency;
        break;
      }
      case RopeScaling::Kind::yarn: {
        const double ramp = yarn_ramp(i);
        frequency = frequency * (1.0 - ramp) + frequency / scaling.factor * ramp;
        break;
      }
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

RopeTable make_rope_table(const ModelConfig& config, int64_t max_positions, int64_t later_positions,
                          Memory& memory, Ops& ops) {
  const int64_t first_later = max_positions - later_positions;
  const bool dynamic = config.rope_scaling.kind == RopeScaling::Kind::dynamic;
  std::vector<float> frequencies = rope_frequencies(config, first_later);
  const auto half = static_cast<int64_t>(frequencies.size());
  RopeTable table{OwnedTensor(memory, Purpose::workspace, DType::f32, {max_positions, half}),
                  OwnedTensor(memory, Purpose::workspace, DType::f32, {max_positions, half})};
  if (ops.plans_only()) return table;
  // A panel of positions at a time: on the host this takes no memory that counts.
  constexpr int64_t kPanelPositions = 1024;
  std::vector<float> cosine;  // [positions of the panel, head_dim / 2]
  std::vector<float> sine;    // [positions of the panel, head_dim / 2]
  const auto scale = static_cast<float>(config.rope_scaling.attention_factor);
  for (int64_t begin = 0; begin < max_positions; begin += kPanelPositions) {
    const int64_t end = std::min(begin + kPanelPositions, max_positions);
    cosine.clear();
    sine.clear();
    for (int64_t position = begin; position < end; ++position) {
      if (dynamic && position >= first_later) frequencies = rope_frequencies(config, position + 1);
      for (const float frequency : frequencies) {
        const auto angle = static_cast<double>(static_cast<float>(position) * frequency);
        cosine.push_back(scale * static_cast<float>(std::cos(angle)));
        sine.push_back(scale * static_cast<float>(std::sin(angle)));
      }
    }
    ops.copy(table.cosine.view().rows(begin, end),
             Tensor(cosine.data(), DType::f32, {end - begin, half}));
    ops.copy(table.sine.view().rows(begin, end),
             Tensor(sine.data(), DType::f32, {end - begin, half}));
  }
  return table;
}

}  // namespace jackscrew
