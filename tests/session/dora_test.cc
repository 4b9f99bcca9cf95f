// DoRA of one linear layer against plain arithmetic in double, over weights however they are kept.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "model/layers.h"
#include "quant/plain.h"
#include "tests/support/golden.h"
#include "tests/support/products.h"
#include "tests/support/test_ops.h"
#include "tests/support/values.h"

namespace jackscrew {
namespace {

using Values = std::vector<float>;

constexpr int64_t kIn = 64, kOut = 37, kTokens = 150, kRank = 3;
constexpr double kScale = 2.0 / 3.0;

// A matrix in f32 or bf16.
class Typed {
 public:
  Typed(const Values& values, int64_t width, DType type)
      : type_(type), width_(width), f32_(values) {
    for (const float value : values) bf16_.push_back(to_bf16(value));
  }
  Tensor view() {
    const int64_t rows = static_cast<int64_t>(f32_.size()) / width_;
    if (type_ == DType::f32) return {f32_.data(), type_, {rows, width_}};
    return {bf16_.data(), type_, {rows, width_}};
  }
  Values values() const {
    if (type_ == DType::f32) return f32_;
    Values out;
    for (const bf16 value : bf16_) out.push_back(to_float(value));
    return out;
  }

 private:
  DType type_;
  int64_t width_;
  Values f32_;
  std::vector<bf16> bf16_;
};

class DoraTest : public ::testing::TestWithParam<const char*> {
 protected:
  DoraTest() {
    weight_ = std::make_unique<Weight>(memory_,
                                       WeightSpec{"model.layers.0.mlp.up_proj.weight", kOut, kIn,
                                                  WeightKind::linear, 0, "up_proj"},
                                       find_format(GetParam()));
    fill_weight();
    const Recipe recipe =
        make_recipe({"method=lora", "lora_rank=3", "lora_alpha=2", "use_dora=true"});
    learner_ = find_learner("lora").make(recipe.options);
    auto slot = learner_->make_slot({memory_, memory_, scratch_, &scalars_, *ops_, *optimizer_, 42},
                                    *weight_);
    slot->visit([&](const StateRef& state) {
      tensors_[state.name.substr(state.name.find("lora_"))] = state.view;
    });
    parameter_ = {std::move(weight_), std::move(slot)};
    w_ = Values(kOut * kIn);
    parameter_.weight->decode(*ops_, 0, kOut, Tensor(w_.data(), DType::f32, {kOut, kIn}));
  }

  void fill_weight() {
    Values values = random_values(kOut * kIn, 1);
    // A row of zeros has no length to be brought to.
    std::fill(values.begin(), values.begin() + kIn, 0.0f);
    if (weight_->format().can_encode()) {
      weight_->publish(*ops_, Tensor(values.data(), DType::f32, {kOut, kIn}), {}, scratch_);
      return;
    }
    std::mt19937 bits(2);
    const Tensor storage = weight_->storage().bytes;
    auto* bytes = storage.data<uint8_t>();
    for (int64_t i = 0; i < storage.size(); ++i) bytes[i] = bits() & 0xFF;
    const f16 scale = to_f16(0.01f);  // of blocks of q4_1: a scale and a minimum, then 16 bytes
    for (int64_t at = 0; at < storage.size(); at += 20) {
      std::memcpy(bytes + at, &scale, sizeof scale);
      std::memcpy(bytes + at + 2, &scale, sizeof scale);
    }
  }

  float* data(const char* name) const { return tensors_.at(name).data<float>(); }
  const Values values(const char* name) const {
    const Tensor& tensor = tensors_.at(name);
    return {tensor.data<float>(), tensor.data<float>() + tensor.size()};
  }
  // Another adapter, as if it came from a file.
  void set_adapter() {
    const Values a = random_values(kRank * kIn, 3), b = random_values(kOut * kRank, 4);
    std::copy(a.begin(), a.end(), data("lora_A.weight"));
    std::copy(b.begin(), b.end(), data("lora_B.weight"));
    for (int64_t j = 0; j < kOut; ++j) {
      data("lora_magnitude_vector")[j] *= 1.0f + 0.1f * static_cast<float>(j % 7 - 3);
    }
    Context run = context();
    parameter_.slot->restored(run);
  }
  Context context() { return {*ops_, scratch_, &scalars_, true}; }
  void expect_formula(const char* product_name, DType type, double tolerance);

  std::unique_ptr<Ops> ops_ = make_test_ops();
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, int64_t{32} << 20};
  std::unique_ptr<Optimizer> optimizer_ = make_optimizer("adamw", {});
  std::unique_ptr<Weight> weight_;
  std::unique_ptr<Learner> learner_;
  Parameter parameter_;
  Values w_;  // what the weight reads
  StepScalars scalars_{};
  std::map<std::string, Tensor> tensors_;
};

double at(const Values& values, int64_t i) {
  return static_cast<double>(values[static_cast<size_t>(i)]);
}

// V = W + scale B A and the norms of its rows.
struct Directions {
  std::vector<double> v = std::vector<double>(kOut * kIn);
  std::vector<double> norms = std::vector<double>(kOut);

  Directions(const Values& w, const Values& a, const Values& b) {
    for (int64_t j = 0; j < kOut; ++j) {
      double squares = 0.0;
      for (int64_t i = 0; i < kIn; ++i) {
        double value = at(w, j * kIn + i);
        for (int64_t r = 0; r < kRank; ++r) {
          value += kScale * at(b, j * kRank + r) * at(a, r * kIn + i);
        }
        v[static_cast<size_t>(j * kIn + i)] = value;
        squares += value * value;
      }
      norms[static_cast<size_t>(j)] = std::sqrt(squares);
    }
  }
};

TEST_P(DoraTest, BeginsAsTheWeightItself) {
  const Values x = random_values(kTokens * kIn, 5);
  Values y(kTokens * kOut), plain(kTokens * kOut);
  const auto product = make_product("f32", *ops_);
  Context run = context();
  LinearInput input(Tensor(const_cast<float*>(x.data()), DType::f32, {kTokens, kIn}));
  const Tensor to(y.data(), DType::f32, {kTokens, kOut});
  Linear(parameter_, nullptr, *product).forward(run, input, to);
  product->forward(run, input.operand(run, *product), *parameter_.weight,
                   Tensor(plain.data(), DType::f32, {kTokens, kOut}), Accumulate::no);
  EXPECT_EQ(y, plain);
  const Directions directions(w_, values("lora_A.weight"), values("lora_B.weight"));
  for (size_t j = 0; j < kOut; ++j) {
    EXPECT_NEAR(static_cast<double>(data("lora_magnitude_vector")[j]), directions.norms[j],
                1e-6 * directions.norms[j]);
  }
}

// y = V x ∘ m / n, onto an addend where y is f32, and every gradient, n being a constant; `type` is
// that of y, dy and dx.
void DoraTest::expect_formula(const char* product_name, DType type, double tolerance) {
  set_adapter();
  Values x = random_values(kTokens * kIn, 5);
  Typed dy(random_values(kTokens * kOut, 6), kOut, type),
      y(random_values(kTokens * kOut, 8), kOut, type);
  Typed dx(Values(kTokens * kIn), kIn, type);
  const bool onto = type == DType::f32;  // what is added to is f32
  Values start = onto ? random_values(kTokens * kOut, 7) : Values(kTokens * kOut);
  const auto product = make_product(product_name, *ops_);
  const Linear linear(parameter_, nullptr, *product);
  Context run = context();
  const Arena::Frame frame(scratch_);
  LinearInput input(Tensor(x.data(), DType::f32, {kTokens, kIn}));
  if (onto) {
    linear.forward_onto(run, input, Tensor(start.data(), DType::f32, {kTokens, kOut}), y.view());
  } else {
    linear.forward(run, input, y.view());
  }
  const Tensor dx_view = dx.view();
  linear.backward(run, input, dy.view(), &dx_view, Accumulate::no);

  const Values a = values("lora_A.weight"), b = values("lora_B.weight");
  const Values m = values("lora_magnitude_vector");
  const Values given = dy.values();
  const Directions directions(w_, a, b);
  std::vector<double> factor(kOut);
  for (size_t j = 0; j < kOut; ++j) {
    const double norm = directions.norms[j];
    factor[j] = norm > 0.0 ? static_cast<double>(m[j]) / norm : 0.0;
  }
  Values expected_y(kTokens * kOut), expected_dx(kTokens * kIn);
  std::vector<double> dv(kOut * kIn), dm(kOut);
  for (int64_t t = 0; t < kTokens; ++t) {
    std::vector<double> of_input(kIn);
    for (int64_t j = 0; j < kOut; ++j) {
      const auto row = static_cast<size_t>(j);
      double u = 0.0;
      for (int64_t i = 0; i < kIn; ++i) {
        const auto element = static_cast<size_t>(j * kIn + i);
        const double back = at(given, t * kOut + j) * factor[row];
        u += directions.v[element] * at(x, t * kIn + i);
        of_input[static_cast<size_t>(i)] += back * directions.v[element];
        dv[element] += back * at(x, t * kIn + i);
      }
      expected_y[static_cast<size_t>(t * kOut + j)] =
          static_cast<float>(at(start, t * kOut + j) + u * factor[row]);
      const double norm = directions.norms[row];
      // A magnitude of 0, of a row of zeros, stays as it is.
      if (m[row] != 0.0f) dm[row] += at(given, t * kOut + j) * u / norm;
    }
    for (int64_t i = 0; i < kIn; ++i) {
      expected_dx[static_cast<size_t>(t * kIn + i)] =
          static_cast<float>(of_input[static_cast<size_t>(i)]);
    }
  }
  Values da(kRank * kIn), db(kOut * kRank);
  for (int64_t r = 0; r < kRank; ++r) {
    for (int64_t i = 0; i < kIn; ++i) {
      double sum = 0.0;
      for (int64_t j = 0; j < kOut; ++j) {
        sum += kScale * at(b, j * kRank + r) * dv[static_cast<size_t>(j * kIn + i)];
      }
      da[static_cast<size_t>(r * kIn + i)] = static_cast<float>(sum);
    }
    for (int64_t j = 0; j < kOut; ++j) {
      double sum = 0.0;
      for (int64_t i = 0; i < kIn; ++i) {
        sum += kScale * dv[static_cast<size_t>(j * kIn + i)] * at(a, r * kIn + i);
      }
      db[static_cast<size_t>(j * kRank + r)] = static_cast<float>(sum);
    }
  }
  EXPECT_LE(relative_error(y.values().data(), expected_y), tolerance);
  EXPECT_LE(relative_error(dx.values().data(), expected_dx), tolerance);
  EXPECT_LE(relative_error(data("lora_A.weight.gradient"), da), tolerance);
  EXPECT_LE(relative_error(data("lora_B.weight.gradient"), db), tolerance);
  EXPECT_LE(relative_error(data("lora_magnitude_vector.gradient"), Values(dm.begin(), dm.end())),
            tolerance);
}

TEST_P(DoraTest, IsWhatTheFormulaSays) {
  expect_formula("f32", DType::f32, 3e-6);
}

// Every operand and what lies between products is rounded to 2^-9 of itself, the latter twice.
TEST_P(DoraTest, IsWhatTheFormulaSaysInBf16) {
  if (!ops_->has_bf16()) GTEST_SKIP() << "the level " << ops_->level() << " has no bf16 products";
  expect_formula("bf16", DType::bf16, 0x1p-6);
}

TEST_P(DoraTest, RowsWithoutLengthAreTold) {
  learner_->begin_run(1);
  const std::vector<std::string> warnings = learner_->notes().warnings;
  const bool has_them = find_format(GetParam()).can_encode();
  ASSERT_EQ(warnings.size(), has_them ? 1u : 0u);
  if (!has_them) return;
  EXPECT_NE(warnings[0].find("are 0 (1 in all)"), std::string::npos) << warnings[0];
}

// The lengths follow A and B from step to step.
TEST_P(DoraTest, FactorsFollowAnUpdate) {
  set_adapter();
  const Values x = random_values(kTokens * kIn, 5);
  Context run = context();
  const char* kNames[] = {"lora_A.weight", "lora_B.weight", "lora_magnitude_vector"};
  std::vector<Values> before;
  for (const std::string name : kNames) {
    before.push_back(values(name.c_str()));
    std::fill_n(data((name + ".gradient").c_str()), before.back().size(), 1.0f);
  }
  scalars_.learning_rate = 0.5f;
  scalars_.clip_scale = 1.0f;
  parameter_.slot->apply(run, 0.0);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NE(values(kNames[i]), before[i]) << kNames[i];
  const auto product = make_product("f32", *ops_);
  const auto forward = [&] {
    Values y(kTokens * kOut);
    LinearInput input(Tensor(const_cast<float*>(x.data()), DType::f32, {kTokens, kIn}));
    Linear(parameter_, nullptr, *product)
        .forward(run, input, Tensor(y.data(), DType::f32, {kTokens, kOut}));
    return y;
  };
  const Values updated = forward();
  parameter_.slot->restored(run);
  EXPECT_EQ(forward(), updated);
  const Directions directions(w_, values("lora_A.weight"), values("lora_B.weight"));
  for (int64_t j = 1; j < kOut; ++j) {
    double u = 0.0;
    for (int64_t i = 0; i < kIn; ++i) {
      u += directions.v[static_cast<size_t>(j * kIn + i)] * at(x, i);
    }
    const auto row = static_cast<size_t>(j);
    const double wanted =
        u * static_cast<double>(data("lora_magnitude_vector")[j]) / directions.norms[row];
    EXPECT_NEAR(at(updated, j), wanted, 1e-5 * (1.0 + std::abs(wanted))) << j;
  }
}

INSTANTIATE_TEST_SUITE_P(Storage, DoraTest, ::testing::Values("f32", "bf16", "int8", "nf4", "q4_1"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace jackscrew
