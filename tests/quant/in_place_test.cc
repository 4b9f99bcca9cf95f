// Weights that are updated in place: what stochastic rounding and a grid that stays are for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "quant/format.h"
#include "tests/quant/decode.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

class InPlace : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 2, kCols = 256;

  // Moves every value of `bytes` by its element of `update`.
  void move(const Format& format, std::vector<uint8_t>& bytes, const std::vector<float>& update,
            bool stochastic) {
    const Storage storage = storage_of(bytes, kRows, kCols);
    std::vector<float> values = decode<float>(*ops_, format, storage, 0, kRows);
    for (size_t i = 0; i < values.size(); ++i) values[i] += update[i];
    const auto source = [&](int64_t begin, int64_t end) {
      return Tensor(values.data() + begin * kCols, DType::f32, {end - begin, kCols});
    };
    format.encode(*ops_, source, storage, {stochastic, &scalars_, 7, true}, scratch_);
    scalars_.step += 1;
  }

  std::vector<uint8_t> begin(const Format& format) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<float> values(kRows * kCols);
    for (float& value : values) value = normal(random);
    return encode(*ops_, format, values, kRows, {});
  }

  // How far `steps` moves of `step` each take the values, as a share of the way they should go.
  double share(const char* name, double step, int steps, bool stochastic) {
    const Format& format = find_format(name);
    std::vector<uint8_t> bytes = begin(format);
    const auto first = decode<float>(*ops_, format, storage_of(bytes, kRows, kCols), 0, kRows);
    std::vector<float> update(first.size());
    // One way for even elements, the other for odd ones.
    for (size_t i = 0; i < update.size(); ++i) {
      update[i] = static_cast<float>(i % 2 == 0 ? step : -step);
    }
    for (int i = 0; i < steps; ++i) move(format, bytes, update, stochastic);
    const auto last = decode<float>(*ops_, format, storage_of(bytes, kRows, kCols), 0, kRows);
    double moved = 0.0;
    for (size_t i = 0; i < first.size(); ++i) {
      const double way = static_cast<double>(last[i]) - static_cast<double>(first[i]);
      moved += i % 2 == 0 ? way : -way;
    }
    return moved / (step * steps * static_cast<double>(first.size()));
  }

  std::unique_ptr<Ops> ops_ = make_test_ops(1);
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, 1 << 20};
  StepScalars scalars_{};
};

// A step of int8_affine is some 5e-4 here: ten times as far as one move.
TEST_F(InPlace, SmallUpdatesAddUp) {
  for (const char* name : {"int8_affine", "bf16", "f16", "int8", "int8_row", "int8_dynamic"}) {
    EXPECT_NEAR(share(name, 4e-5, 500, true), 1.0, 0.03) << name;
  }
}

TEST_F(InPlace, RoundedToNearestTheyAreLost) {
  EXPECT_LT(std::abs(share("int8_affine", 4e-5, 500, false)), 0.02);
}

TEST_F(InPlace, ExtremesOfAGroupAreExpectedToStay) {
  const Format& format = find_format("int8_affine");
  std::vector<uint8_t> bytes = begin(format);
  const auto first = decode<float>(*ops_, format, storage_of(bytes, kRows, kCols), 0, kRows);
  const size_t top =
      static_cast<size_t>(std::max_element(first.begin(), first.begin() + 256) - first.begin());
  // Half a code further out: the grid is made anew, with room around it; then every draw is of one
  // of two codes.
  std::vector<float> update(first.size(), 0.0f);
  update[top] = 0.0003f;
  double sum = 0.0;
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) {
    std::vector<uint8_t> drawn = bytes;
    move(format, drawn, update, true);
    sum += decode<float>(*ops_, format, storage_of(drawn, kRows, kCols), 0, kRows)[top];
  }
  EXPECT_NEAR(sum / kDraws, static_cast<double>(first[top] + update[top]), 2e-5);
}

// Moves far below a step of any code: what a group's lowest and highest values have lost is at most
// one code, however many times they were rounded.
TEST_F(InPlace, ExtremesDoNotWearAway) {
  for (const char* name : {"int8_affine", "int8", "int8_row", "int8_dynamic"}) {
    const Format& format = find_format(name);
    std::vector<uint8_t> bytes = begin(format);
    const auto first = decode<float>(*ops_, format, storage_of(bytes, kRows, kCols), 0, kRows);
    for (int i = 0; i < 100; ++i) {
      move(format, bytes, std::vector<float>(kRows * kCols, 1e-9f), true);
    }
    const auto last = decode<float>(*ops_, format, storage_of(bytes, kRows, kCols), 0, kRows);
    const auto [low, high] = std::ranges::minmax_element(first);
    const auto [new_low, new_high] = std::ranges::minmax_element(last);
    EXPECT_NEAR(*new_low / *low, 1.0, 0.02) << name;
    EXPECT_NEAR(*new_high / *high, 1.0, 0.02) << name;
  }
}

TEST_F(InPlace, AStepThatIsNotFiniteChangesNothing) {
  for (const Format* format : all_formats()) {
    if (!format->can_encode()) continue;
    std::vector<uint8_t> bytes = begin(*format);
    const std::vector<uint8_t> before = bytes;
    scalars_.finite = 0;
    move(*format, bytes, std::vector<float>(kRows * kCols, 0.01f), true);
    EXPECT_EQ(bytes, before) << format->name();
    scalars_.finite = 1;
    move(*format, bytes, std::vector<float>(kRows * kCols, 0.01f), true);
    EXPECT_NE(bytes, before) << format->name();
  }
}

}  // namespace
}  // namespace jackscrew
