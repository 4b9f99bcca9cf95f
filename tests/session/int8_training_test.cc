// Training with the products of bytes beside f32: the same seeds, nearly the same curve.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/batches.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

// Text of a language in which three tokens of four follow from the one before: there is something
// to learn, and a loss that cannot be undercut.
MicroBatch sample(int64_t vocab_size, int64_t sequences, int64_t length, std::mt19937& random) {
  const auto below = [&](int64_t count) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(count));
  };
  MicroBatch out;
  out.cu_seqlens = {0};
  for (int64_t s = 0; s < sequences; ++s) {
    int64_t id = below(vocab_size);
    for (int64_t t = 0; t < length; ++t) {
      out.ids.push_back(static_cast<int32_t>(id));
      out.positions.push_back(static_cast<int32_t>(t));
      id = below(4) != 0 ? (5 * id + 3) % vocab_size : below(vocab_size);
      out.targets.push_back(t + 1 < length ? static_cast<int32_t>(id) : -1);
      out.target_count += t + 1 < length ? 1 : 0;
    }
    out.cu_seqlens.push_back(static_cast<int32_t>(out.ids.size()));
  }
  return out;
}

// What a product is given, and by how much the mean loss of a window may differ from that of f32.
struct Rounded {
  std::vector<std::string> settings;
  double tolerance;
};

std::vector<double> losses_with(const std::vector<std::string>& product) {
  constexpr int kSteps = 300;
  std::vector<std::string> settings = {"method=full", "init=random"};
  settings.insert(settings.end(), product.begin(), product.end());
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session = make_session(make_recipe(settings), files, training_use(8 * 32));
  std::mt19937 random(1);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    session->accumulate(step_of({sample(files.config.vocab_size, 8, 32, random)}), 3e-3, step);
    losses.push_back(session->update({}).loss);
  }
  return losses;
}

double mean_of_window(const std::vector<double>& losses, size_t begin, size_t count) {
  double sum = 0.0;
  for (size_t step = begin; step < begin + count; ++step) sum += losses[step];
  return sum / static_cast<double>(count);
}

TEST(SlowInt8Training, LossFollowsThatOfF32) {
  constexpr size_t kWindow = 25;
  const std::vector<double> exact = losses_with({"product=f32"});
  EXPECT_LT(mean_of_window(exact, exact.size() - kWindow, kWindow),
            0.8 * mean_of_window(exact, 0, kWindow))
      << "nothing was learnt";
  for (const Rounded& rounded :
       {Rounded{{"product=int8"}, 0.01}, Rounded{{"product=int8", "int8_dw=int8"}, 0.01},
        Rounded{{"product=w4a8"}, 0.03}, Rounded{{"product=int4"}, 0.06}}) {
    const std::vector<double> losses = losses_with(rounded.settings);
    for (size_t begin = 0; begin < exact.size(); begin += kWindow) {
      const double wanted = mean_of_window(exact, begin, kWindow);
      EXPECT_NEAR(mean_of_window(losses, begin, kWindow), wanted, rounded.tolerance * wanted)
          << fmt::format("{}", fmt::join(rounded.settings, " ")) << " from step " << begin;
    }
  }
}

}  // namespace
}  // namespace jackscrew
