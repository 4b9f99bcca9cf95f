// LoRA against PEFT, its scale, its dropout, and its way to disk and back.
#include "learners/lora.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "formats/peft.h"
#include "learners/full.h"
#include "model/layers.h"
#include "products/dense.h"
#include "session/adapter.h"
#include "tests/support/batches.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/products.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

// The settings of a run that goes on from an adapter.
std::vector<std::string> lora_settings(const PeftAdapter& adapter) {
  std::vector<std::string> settings = {"method=lora"};
  for (const AdapterOption& option : adapter.options) {
    const std::string items = fmt::format("{}", fmt::join(option.items, ","));
    settings.push_back(option.name + "=" + (option.items.empty() ? option.value : items));
  }
  return settings;
}

// The golden adapter over its model, for the golden batch.
class LoraTest : public ::testing::Test {
 protected:
  std::unique_ptr<Session> session(std::vector<std::string> settings, bool load = true) const {
    auto out = make_session(make_recipe(settings), files_, training_use(batch_.tokens));
    if (load) load_adapter(out->stage(), out->ops(), golden_path("lora"));
    return out;
  }

  // The logits of every sequence of the golden batch, end to end.
  std::vector<float> logits(Session& from) const {
    std::vector<float> out;
    for (const MicroBatch& one : separated(batch_.micro_batches[0])) {
      const Tensor part = from.logits(one.ids, one.tokens(), false);
      out.insert(out.end(), part.data<float>(), part.data<float>() + part.size());
    }
    return out;
  }

  const Golden golden_{"lora"};
  const PeftAdapter adapter_ = read_peft_adapter(golden_path("lora"));
  const ModelFiles files_ = open_model(golden_path("gqa_tied").string());
  const StepBatch batch_ = golden_.batch();
};

TEST_F(LoraTest, LogitsLossAndGradientsOfPeft) {
  for (const char* recompute : {"false", "true"}) {
    std::vector<std::string> settings = lora_settings(adapter_);
    settings.push_back(std::string("gradient_checkpointing=") + recompute);
    const auto run = session(settings);
    EXPECT_LE(relative_error(logits(*run).data(), golden_.values("logits")), 1e-5);
    run->accumulate(batch_, 0.0, 0);
    const auto gradients = states(run->stage(), StateRole::gradient);
    EXPECT_EQ(gradients.size(), adapter_.tensors.size());
    for (const auto& [name, view] : gradients) {
      const std::string parameter = name.substr(0, name.rfind(".gradient"));
      const auto expected = golden_.values("grad.base_model.model." + parameter);
      EXPECT_LE(relative_error(view.data<float>(), expected), 1e-4) << parameter;
    }
    const StepResult result = run->update({});
    EXPECT_NEAR(result.loss, static_cast<double>(golden_.values("loss")[0]), 1e-5 * result.loss);
  }
}

// Coarser bases give other logits, in the order of their coarseness, and are learnt over.
TEST_F(LoraTest, LearnsOverCoarseStorage) {
  const auto expected = golden_.values("logits");
  double last = 0.0;
  for (const char* storage : {"int8", "int8_dynamic", "nf4"}) {
    std::vector<std::string> settings = lora_settings(adapter_);
    settings.push_back(std::string("storage=") + storage);
    const auto run = session(settings);
    for (const auto& parameter : run->stage().parameters()) {
      const bool in_block =
          parameter->weight->spec().kind == WeightKind::linear;  // the head is tied
      EXPECT_STREQ(parameter->weight->format().name(), in_block ? storage : "f32");
    }
    const double error = relative_error(logits(*run).data(), expected);
    EXPECT_GT(error, last) << storage;
    EXPECT_LT(error, std::string(storage) == "nf4" ? 1.0 : 0.2) << storage;
    last = error;
    const double loss = run->loss_sum(batch_);
    for (int64_t step = 0; step < 10; ++step) {
      run->accumulate(batch_, 1e-2, step);
      run->update({});
    }
    EXPECT_LT(run->loss_sum(batch_), loss) << storage;
  }
}

TEST_F(LoraTest, BeginsAsTheModelItself) {
  const auto fresh = session({"method=lora", "lora_rank=8"}, false);
  const auto plain = session({"method=full"}, false);
  EXPECT_EQ(logits(*fresh), logits(*plain));
  for (const auto& [name, values] : state_values(fresh->stage(), StateRole::parameter)) {
    const bool is_b = name.find("lora_B") != std::string::npos;
    const bool all_zero =
        std::all_of(values.begin(), values.end(), [](float v) { return v == 0.0f; });
    EXPECT_EQ(all_zero, is_b) << name;
    if (is_b) continue;
    // Uniform in 1 / sqrt(in) on either side.
    const float bound = 1.0f / std::sqrt(static_cast<float>(values.size()) / 8.0f);
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    EXPECT_GE(*low, -bound) << name;
    EXPECT_LE(*high, bound) << name;
    EXPECT_LT(*low, -0.8f * bound) << name;
    EXPECT_GT(*high, 0.8f * bound) << name;
  }
}

TEST_F(LoraTest, RsloraDividesByTheRoot) {
  ASSERT_EQ(adapter_.settings["r"], 4);
  ASSERT_EQ(adapter_.settings["lora_alpha"], 8.0);  // a scale of 2
  const std::vector<float> plain = logits(*session(lora_settings(adapter_)));
  auto settings = lora_settings(adapter_);
  settings.push_back("lora_alpha=4");  // 4 / sqrt(4) is 2 again
  settings.push_back("use_rslora=true");
  EXPECT_EQ(logits(*session(settings)), plain);
  settings.back() = "use_rslora=false";
  EXPECT_NE(logits(*session(settings)), plain);
}

TEST_F(LoraTest, AlphaIsTwiceTheRankByDefault) {
  const auto run = session({"method=lora", "lora_rank=6"}, false);
  const nlohmann::json adapter = run->learner().adapter();
  EXPECT_EQ(adapter["lora_alpha"], 12);
  EXPECT_EQ(adapter["target_modules"].size(), 7u);
}

TEST_F(LoraTest, DropoutIsTheSameWhenRecomputedAndOffInEvaluation) {
  std::vector<std::string> settings = lora_settings(adapter_);
  const auto plain = session(settings);
  settings.push_back("lora_dropout=0.3");
  settings.push_back("gradient_checkpointing=false");
  const auto gradients_of = [&](Session& run, int64_t step) {
    run.accumulate(batch_, 0.0, step);
    auto out = state_values(run.stage(), StateRole::gradient);
    run.update({});
    return out;
  };
  const auto dropping = session(settings);
  const auto first = gradients_of(*dropping, 3);
  EXPECT_EQ(gradients_of(*dropping, 3), first) << "the same step again";
  EXPECT_NE(gradients_of(*dropping, 4), first) << "another step";
  EXPECT_NE(gradients_of(*plain, 3), first) << "without dropout";
  settings.back() = "gradient_checkpointing=true";
  EXPECT_EQ(gradients_of(*session(settings), 3), first) << "recomputed";
  settings.push_back("seed=43");
  EXPECT_NE(gradients_of(*session(settings), 3), first) << "another seed";

  EXPECT_EQ(dropping->loss_sum(batch_), plain->loss_sum(batch_));
  EXPECT_EQ(logits(*dropping), logits(*plain));
}

// A step cut into micro-batches otherwise drops the same inputs.
TEST_F(LoraTest, DropoutDoesNotDependOnMicroBatches) {
  std::vector<std::string> settings = lora_settings(adapter_);
  settings.push_back("lora_dropout=0.3");
  const auto run = session(settings);
  run->accumulate(batch_, 0.0, 5);
  const auto whole = state_values(run->stage(), StateRole::gradient);
  const double loss = run->update({}).loss;
  run->accumulate(step_of(separated(batch_.micro_batches[0])), 0.0, 5);
  const auto cut = states(run->stage(), StateRole::gradient);
  for (const auto& [name, values] : whole) {
    EXPECT_LE(relative_error(cut.at(name).data<float>(), values), 1e-5) << name;
  }
  EXPECT_NEAR(run->update({}).loss, loss, 1e-6 * loss);
}

TEST_F(LoraTest, ATrainedAdapterSurvivesTheDisk) {
  const fs::path directory =
      fs::temp_directory_path() / fmt::format("jackscrew_learners_{}", ::getpid());
  fs::remove_all(directory);
  const std::vector<std::string> settings = {"method=lora", "lora_rank=3", "lora_alpha=5",
                                             "use_rslora=true",
                                             "lora_target=q_proj,o_proj,up_proj"};
  const auto trained = session(settings, false);
  const std::vector<float> before = logits(*trained);
  for (int64_t step = 0; step < 3; ++step) {
    trained->accumulate(batch_, 1e-2, step);
    trained->update({});
  }
  const std::vector<float> after = logits(*trained);
  EXPECT_NE(after, before);
  export_adapter([&](const StateVisitor& visitor) { trained->visit(visitor); }, trained->ops(),
                 trained->learner().adapter(), "base", directory);

  const PeftAdapter read = read_peft_adapter(directory);
  EXPECT_EQ(read.base_model_name_or_path, "base");
  auto again_settings = lora_settings(read);
  again_settings.push_back("seed=7");
  const auto again = session(again_settings, false);
  load_adapter(again->stage(), again->ops(), directory);
  EXPECT_EQ(logits(*again), after);
  fs::remove_all(directory);
}

TEST_F(LoraTest, RefusesTargetsThatDoNotExist) {
  for (const char* target : {"lora_target=k_pro", "lora_target=lm_head"}) {
    error_of(ErrorKind::usage, [&] { session({"method=lora", target}, false); });
  }
}

// One slot by itself, rank 1, its factors all ones.
class LoraSlotTest : public ::testing::Test {
 protected:
  static constexpr int64_t kIn = 64, kOut = 3, kTokens = 4096;
  const WeightSpec spec_{"model.x.q_proj.weight", kOut, kIn, WeightKind::linear, 0, "q_proj"};

  LoraSlotTest() : weight_(memory_, spec_, find_format("f32")) {
    const Recipe recipe =
        make_recipe({"method=lora", "lora_rank=1", "lora_alpha=1", "lora_dropout=0.25"});
    learner_ = find_learner("lora").make(recipe.options);
    slot_ = learner_->make_slot({memory_, memory_, scratch_, &scalars_, *ops_, *optimizer_, 42},
                                weight_);
    scalars_.seed = 42;
    slot_->visit([&](const StateRef& state) {
      tensors_[state.name.substr(state.name.find("lora_"))] = state.view;
    });
    for (const char* factor : {"lora_A.weight", "lora_B.weight"}) {
      float* values = tensors_.at(factor).data<float>();
      std::fill(values, values + tensors_.at(factor).size(), 1.0f);
    }
  }

  std::vector<float> forward(std::vector<float>& x, int64_t first, int64_t tokens,
                             float before = 0.0f, Accumulate accumulate = Accumulate::yes) {
    std::vector<float> y(static_cast<size_t>(tokens * kOut), before);
    Context run{*ops_, scratch_, &scalars_, true, {nullptr, first}};
    const Tensor in(x.data() + first * kIn, DType::f32, {tokens, kIn});
    slot_->forward(run, {in}, Tensor(y.data(), DType::f32, {tokens, kOut}), accumulate);
    return y;
  }

  std::unique_ptr<Ops> ops_ = make_test_ops();
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, int64_t{32} << 20};
  std::unique_ptr<Optimizer> optimizer_ = make_optimizer("adamw", {});
  Weight weight_;
  std::unique_ptr<Learner> learner_;
  std::unique_ptr<LearnerSlot> slot_;
  StepScalars scalars_{};
  std::map<std::string, Tensor> tensors_;
};

TEST_F(LoraSlotTest, DropoutKeepsTheExpectation) {
  std::vector<float> x(static_cast<size_t>(kTokens * kIn), 1.0f);
  const std::vector<float> y = forward(x, 0, kTokens);
  double sum = 0.0;
  double squares = 0.0;
  for (size_t t = 0; t < y.size(); t += kOut) {
    sum += static_cast<double>(y[t]);
    squares += static_cast<double>(y[t]) * static_cast<double>(y[t]);
  }
  // Each of 64 inputs is 0 or 4/3: a mean of 64 and a variance of 64 / 3 for a token.
  const double mean = sum / kTokens;
  EXPECT_NEAR(mean, 64.0, 5.0 * std::sqrt(64.0 / 3.0 / kTokens));
  EXPECT_NEAR(squares / kTokens - mean * mean, 64.0 / 3.0,
              64.0 / 3.0 * 5.0 * std::sqrt(2.0 / kTokens));
}

TEST_F(LoraSlotTest, DropoutFollowsTheGlobalIndex) {
  std::vector<float> x(static_cast<size_t>(100 * kIn));
  std::mt19937 random(1);
  for (float& value : x) value = static_cast<float>(random() % 7);
  std::vector<float> whole = forward(x, 0, 100);
  std::vector<float> cut = forward(x, 0, 37);
  const std::vector<float> rest = forward(x, 37, 63);
  cut.insert(cut.end(), rest.begin(), rest.end());
  EXPECT_EQ(cut, whole);
}

TEST_F(LoraSlotTest, WritesTheBranchOrAddsIt) {
  std::vector<float> x(static_cast<size_t>(100 * kIn), 0.5f);
  const std::vector<float> branch = forward(x, 0, 100);
  EXPECT_EQ(forward(x, 0, 100, 7.0f, Accumulate::no), branch);
  const std::vector<float> added = forward(x, 0, 100, 7.0f);
  for (size_t i = 0; i < branch.size(); ++i) ASSERT_NEAR(added[i], branch[i] + 7.0f, 1e-4f);
}

// y = f(x) is linear in x, in A and in B, so that <dy, y> is each of <dx, x>, <dA, A>, <dB, B>:
// holds only when backward drops what forward dropped.
TEST_F(LoraSlotTest, BackwardIsTheTransposeOfForward) {
  const int64_t tokens = 50;
  std::vector<float> x(static_cast<size_t>(tokens * kIn));
  std::vector<float> dy(static_cast<size_t>(tokens * kOut));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& value : x) value = normal(random);
  for (float& value : dy) value = normal(random);
  for (const char* factor : {"lora_A.weight", "lora_B.weight"}) {
    float* values = tensors_.at(factor).data<float>();
    for (int64_t i = 0; i < tensors_.at(factor).size(); ++i) values[i] = normal(random);
  }
  const auto dot = [](const float* a, const float* b, int64_t count) {
    double out = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      out += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    }
    return out;
  };
  const std::vector<float> y = forward(x, 0, tokens);
  std::vector<float> dx(x.size());
  Context run{*ops_, scratch_, &scalars_, true};
  const Tensor in(x.data(), DType::f32, {tokens, kIn});
  const Tensor dx_view(dx.data(), DType::f32, {tokens, kIn});
  const Gradient g = f32_product().backward(run, f32_product().prepare(run, in),
                                            Tensor(dy.data(), DType::f32, {tokens, kOut}), weight_);
  slot_->backward(g, &dx_view);
  const double expected = dot(dy.data(), y.data(), tokens * kOut);
  ASSERT_GT(std::abs(expected), 1.0);
  const double tolerance = 1e-5 * std::abs(expected);
  EXPECT_NEAR(dot(dx.data(), x.data(), tokens * kIn), expected, tolerance);
  for (const std::string factor : {"lora_A.weight", "lora_B.weight"}) {
    EXPECT_NEAR(dot(tensors_.at(factor).data<float>(),
                    tensors_.at(factor + ".gradient").data<float>(), tensors_.at(factor).size()),
                expected, tolerance)
        << factor;
  }
}

// 257 is rounded to 256 in bf16, and what the adapter adds to that would be lost.
TEST_F(LoraSlotTest, SumInBf16IsRoundedOnce) {
  if (!ops_->has_bf16()) GTEST_SKIP() << "the level " << ops_->level() << " has no bf16 products";
  std::vector<float> values(static_cast<size_t>(kOut * kIn), 0.0f);
  for (size_t row = 0; row < kOut; ++row) {
    values[row * kIn] = 256.0f;
    values[row * kIn + 1] = 1.0f;
  }
  auto weight = std::make_unique<Weight>(memory_, spec_, find_format("f32"));
  weight->publish(*ops_, Tensor(values.data(), DType::f32, {kOut, kIn}), {}, scratch_);
  const Tensor a = tensors_.at("lora_A.weight");
  std::fill(a.data<float>(), a.data<float>() + a.size(), 0.0f);
  a.data<float>()[0] = 0.9f;
  Parameter parameter{std::move(weight), std::move(slot_)};
  const auto product = make_product("bf16", *ops_);
  const Linear linear(parameter, nullptr, *product);
  Context run{*ops_, scratch_, &scalars_, false};
  const Arena::Frame frame(scratch_);
  std::vector<float> x(kIn, 0.0f);
  x[0] = x[1] = 1.0f;
  std::vector<bf16> y(kOut);
  LinearInput input(Tensor(x.data(), DType::f32, {1, kIn}));
  linear.forward(run, input, Tensor(y.data(), DType::bf16, {1, kOut}));
  for (const bf16 value : y) EXPECT_EQ(to_float(value), 258.0f);
}

}  // namespace
}  // namespace jackscrew
