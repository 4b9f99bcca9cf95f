// Rotary frequencies and tables against the formulas that transformers computes.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

ModelConfig config_of(int64_t head_dim, double theta) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.rope_theta = theta;
  return config;
}

// rope_theta^(-2i / d), i counting pairs.
double plain(const ModelConfig& config, size_t i) {
  return std::pow(config.rope_theta,
                  -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
}

// One place of float is what transformers' own float arithmetic is off by.
void expect_frequency(float actual, double expected) {
  EXPECT_NEAR(static_cast<double>(actual), expected, 0x1p-23 * expected);
}

TEST(RopeTest, FrequenciesFallGeometrically) {
  for (const int64_t head_dim : {2, 52, 128}) {
    const ModelConfig config = config_of(head_dim, 10000.0);
    const auto frequencies = rope_frequencies(config, 300);
    ASSERT_EQ(frequencies.size(), static_cast<size_t>(head_dim / 2));
    EXPECT_EQ(frequencies[0], 1.0f);
    for (size_t i = 0; i < frequencies.size(); ++i) {
      expect_frequency(frequencies[i], plain(config, i));
    }
  }
}

TEST(RopeTest, LinearScalingDividesAllFrequencies) {
  ModelConfig config = config_of(64, 500000.0);
  config.rope_scaling.kind = RopeScaling::Kind::linear;
  config.rope_scaling.factor = 3.0;
  const auto frequencies = rope_frequencies(config, 300);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    expect_frequency(frequencies[i], plain(config, i) / 3.0);
  }
}

// _compute_llama3_parameters of transformers, with the values of Llama 3.1.
TEST(RopeTest, Llama3StretchesLowFrequencies) {
  ModelConfig config = config_of(128, 500000.0);
  config.rope_scaling = {RopeScaling::Kind::llama3, 8.0, 1.0, 4.0, 8192};
  const auto frequencies = rope_frequencies(config, 300);
  int kept = 0;
  int blended = 0;
  int divided = 0;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double inverse = plain(config, i);
    const double wavelength = 2.0 * std::numbers::pi / inverse;
    double expected = inverse;
    if (wavelength > 8192.0 / 1.0) {
      expected = inverse / 8.0;
      ++divided;
    } else if (wavelength >= 8192.0 / 4.0) {
      const double smooth = (8192.0 / wavelength - 1.0) / (4.0 - 1.0);
      expected = (1.0 - smooth) * inverse / 8.0 + smooth * inverse;
      ++blended;
    } else {
      ++kept;
    }
    expect_frequency(frequencies[i], expected);
  }
  // As in Meta's release: 29 pairs as they were, 6 in between, 29 stretched.
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(blended, 6);
  EXPECT_EQ(divided, 29);
}

TEST(RopeTest, TableHoldsCosineAndSineOfEveryPosition) {
  const ModelConfig config = config_of(16, 10000.0);
  const auto ops = make_test_ops();
  Memory memory("host", make_host_backing(), 0);
  const RopeTable table = make_rope_table(config, 2500, 0, memory, *ops);
  const auto frequencies = rope_frequencies(config, 2500);
  ASSERT_EQ(table.cosine.view().rows(), 2500);
  for (int64_t position = 0; position < 2500; ++position) {
    for (size_t i = 0; i < frequencies.size(); ++i) {
      const auto at = static_cast<size_t>(position) * frequencies.size() + i;
      const double angle = static_cast<double>(position) * static_cast<double>(frequencies[i]);
      // The angle itself is rounded to float, as the models were trained.
      const double tolerance = 0x1p-24 * (1.0 + angle);
      EXPECT_NEAR(static_cast<double>(table.cosine.view().data<float>()[at]), std::cos(angle),
                  tolerance);
      EXPECT_NEAR(static_cast<double>(table.sine.view().data<float>()[at]), std::sin(angle),
                  tolerance);
    }
  }
}

// _compute_dynamic_ntk_parameters of transformers: a sequence has the frequencies of its length, a
// token that is added to it those of the length with it, none those of less than the model's own.
TEST(RopeTest, DynamicScalingFollowsTheLengthOfTheSequence) {
  ModelConfig config = config_of(8, 200.0);
  config.max_position_embeddings = 24;
  config.rope_scaling.kind = RopeScaling::Kind::dynamic;
  config.rope_scaling.factor = 2.0;
  const auto ops = make_test_ops();
  Memory memory("host", make_host_backing(), 0);
  for (const int64_t sequence : {0, 20, 30, 40}) {
    const RopeTable table = make_rope_table(config, 40, 40 - sequence, memory, *ops);
    for (int64_t position = 0; position < 40; ++position) {
      const int64_t length = std::max({int64_t{24}, sequence, position + 1});
      const double base =
          200.0 * std::pow(2.0 * static_cast<double>(length) / 24.0 - 1.0, 8.0 / 6.0);
      for (int64_t pair = 0; pair < 4; ++pair) {
        const double angle =
            static_cast<double>(position) * std::pow(base, -static_cast<double>(pair) / 4.0);
        const auto at = static_cast<size_t>(position * 4 + pair);
        const double tolerance = 0x1p-22 * (1.0 + angle);
        EXPECT_NEAR(static_cast<double>(table.cosine.view().data<float>()[at]), std::cos(angle),
                    tolerance);
        EXPECT_NEAR(static_cast<double>(table.sine.view().data<float>()[at]), std::sin(angle),
                    tolerance);
      }
    }
  }
}

}  // namespace
}  // namespace jackscrew
