// The full learner's masters, and learners that no file of the program knows.
#include "learners/learner.h"

#include <gtest/gtest.h>

#include <random>

#include "learners/frozen.h"
#include "learners/full.h"
#include "tests/support/batches.h"
#include "tests/support/errors.h"
#include "tests/support/golden_rig.h"
#include "tests/support/products.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

TEST(FullLearnerTest, KeepsAMasterBesideNarrowStorageAndPublishes) {
  const Golden golden("gqa_tied");
  const StepBatch batch = golden.batch();
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session =
      make_session(make_recipe({"method=full", "storage=bf16"}), files, training_use(batch.tokens));
  const auto booked = [&](Purpose purpose) {
    return session->memory().ledger().current[static_cast<size_t>(purpose)];
  };
  EXPECT_GT(booked(Purpose::masters), 0);
  const auto before = state_values(session->stage(), StateRole::parameter);
  // Masters begin with the file's numbers, not with those that the storage rounded.
  const auto exact = make_session(make_recipe({"method=full"}), files, training_use(batch.tokens));
  EXPECT_EQ(before, state_values(exact->stage(), StateRole::parameter));
  const double loss = session->loss_sum(batch);
  for (int64_t step = 0; step < 3; ++step) {
    session->accumulate(batch, 1e-4, step);
    session->update({});
  }
  EXPECT_LT(session->loss_sum(batch), loss);
  const auto masters = states(session->stage(), StateRole::parameter);
  size_t narrow_weights = 0;
  size_t between = 0;
  for (const auto& parameter : session->stage().parameters()) {
    const Weight& weight = *parameter->weight;
    const Tensor& master = masters.at(weight.name());
    ASSERT_EQ(master.dtype(), DType::f32);
    EXPECT_NE(std::memcmp(master.raw(), before.at(weight.name()).data(),
                          static_cast<size_t>(master.bytes())),
              0)
        << weight.name();
    if (weight.spec().kind == WeightKind::norm) {
      EXPECT_STREQ(weight.format().name(), "f32");
      continue;
    }
    ++narrow_weights;
    ASSERT_STREQ(weight.format().name(), "bf16");
    const auto* stored = static_cast<const bf16*>(weight.storage().bytes.raw());
    for (int64_t i = 0; i < weight.size(); ++i) {
      const float value = master.data<float>()[i];
      ASSERT_EQ(stored[i].bits, to_bf16(value).bits) << weight.name() << " element " << i;
      between += to_float(stored[i]) != value ? 1 : 0;
    }
  }
  EXPECT_EQ(narrow_weights, 3u * 7u + 1u);
  EXPECT_GT(between, 0u) << "the masters hold no more than the storage";
}

// Low-bit storage is for the linears of blocks; what is trained beside it stays f32.
TEST(FullLearnerTest, LearnsOverCoarseStorage) {
  const Golden golden("mha_untied");
  const StepBatch batch = golden.batch();
  const ModelFiles files = open_model(golden_path("mha_untied").string());
  const auto session =
      make_session(make_recipe({"method=full", "storage=int8"}), files, training_use(batch.tokens));
  for (const auto& parameter : session->stage().parameters()) {
    const WeightSpec& spec = parameter->weight->spec();
    EXPECT_STREQ(parameter->weight->format().name(), spec.is_block_matrix() ? "int8" : "f32")
        << spec.module;
  }
  const double loss = session->loss_sum(batch);
  for (int64_t step = 0; step < 5; ++step) {
    session->accumulate(batch, 3e-4, step);
    session->update({});
  }
  EXPECT_LT(session->loss_sum(batch), loss);
  // What the blocks compute with are the masters, rounded.
  const auto masters = states(session->stage(), StateRole::parameter);
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace, 1 << 20);
  for (const auto& parameter : session->stage().parameters()) {
    const Weight& weight = *parameter->weight;
    Weight again(memory, weight.spec(), weight.format());
    again.publish(session->ops(), masters.at(weight.name()), {}, scratch);
    EXPECT_EQ(std::memcmp(again.storage().bytes.raw(), weight.storage().bytes.raw(),
                          static_cast<size_t>(weight.storage().bytes.bytes())),
              0)
        << weight.name();
  }
}

TEST(LearnerTableTest, FindsByNameAndSuggests) {
  for (const LearnerEntry& entry : all_learners()) {
    EXPECT_EQ(&find_learner(entry.name), &entry);
  }
  const std::string refusal = error_of(ErrorKind::usage, [] { find_learner("lore"); });
  EXPECT_NE(hint_of(refusal).find("lora"), std::string::npos) << refusal;
}

enum class Side { left, right };

// Accumulates a gradient projected by a fixed random matrix, as GaLore does.
class ProjectingSlot : public LearnerSlot {
 public:
  static constexpr int64_t kRank = 3;

  ProjectingSlot(const LearnerContext& context, const Weight& weight, Side side)
      : name_(weight.name()),
        side_(side),
        projection_(context.memory, Purpose::projections, DType::f32,
                    {side == Side::left ? weight.rows() : weight.cols(), kRank}),
        projected_(context.memory, Purpose::gradients, DType::f32,
                   {side == Side::left ? weight.cols() : weight.rows(), kRank}) {
    std::mt19937 random(name_hash(name_.c_str()));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < projection_.view().size(); ++i) {
      projection_.view().data<float>()[i] = normal(random);
    }
  }

  bool learns() const override { return true; }
  void backward(const Gradient& g, const Tensor*) override {
    if (side_ == Side::left) {
      g.add_left(projection_.view(), projected_.view());
    } else {
      g.add_right(projection_.view(), projected_.view());
    }
  }
  void visit(const StateVisitor& visitor) const override {
    visitor({name_, StateRole::moment, projection_.view(), true});
    visitor({name_ + ".gradient", StateRole::gradient, projected_.view(), false});
  }

 private:
  std::string name_;
  Side side_;
  OwnedTensor projection_, projected_;
};

class ProjectingLearner : public Learner {
 public:
  explicit ProjectingLearner(Side side) : side_(side) {}
  const char* name() const override { return "projecting"; }
  bool changes(const WeightSpec& weight) const override {
    return weight.kind == WeightKind::linear;
  }
  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) override {
    if (!changes(weight.spec())) return std::make_unique<FrozenSlot>();
    return std::make_unique<ProjectingSlot>(context, weight, side_);
  }

 private:
  Side side_;
};

class ProjectingTest : public ::testing::TestWithParam<const char*> {};

// Gᵀ P or G Q in double.
std::vector<float> projected(Side side, const std::vector<float>& gradient, int64_t rows,
                             int64_t cols, const float* projection) {
  const int64_t rank = ProjectingSlot::kRank;
  std::vector<double> sums(static_cast<size_t>((side == Side::left ? cols : rows) * rank));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const auto g = static_cast<double>(gradient[static_cast<size_t>(r * cols + c)]);
      for (int64_t k = 0; k < rank; ++k) {
        const bool left = side == Side::left;
        const size_t to = static_cast<size_t>((left ? c : r) * rank + k);
        sums[to] += g * static_cast<double>(projection[(left ? r : c) * rank + k]);
      }
    }
  }
  return {sums.begin(), sums.end()};
}

TEST_P(ProjectingTest, AccumulatesTheProjectedGradient) {
  const Golden golden(GetParam());
  const ModelFiles files = open_model(golden_path(GetParam()).string());
  const std::vector<MicroBatch> parts = separated(golden.batch().micro_batches[0]);
  const auto full_learner = make_full_learner();
  StageRig full(model_of(files), StageSpec::whole(files.config), *full_learner);
  ProjectingLearner left_learner(Side::left);
  ProjectingLearner right_learner(Side::right);
  StageRig left(model_of(files), StageSpec::whole(files.config), left_learner);
  StageRig right(model_of(files), StageSpec::whole(files.config), right_learner);
  for (StageRig* rig : {&full, &left, &right}) {
    rig->begin(golden.batch().targets);
    for (const MicroBatch& part : parts) rig->accumulate(DeviceBatch(part));
    EXPECT_EQ(rig->scalars().loss_sum, full.scalars().loss_sum);
  }
  const auto gradients = state_values(full.stage(), StateRole::gradient);
  for (const auto& [rig, side] : {std::pair{&left, Side::left}, std::pair{&right, Side::right}}) {
    const auto projections = states(rig->stage(), StateRole::moment);
    const auto results = states(rig->stage(), StateRole::gradient);
    EXPECT_EQ(results.size(), 7 * static_cast<size_t>(files.config.num_hidden_layers) +
                                  (files.config.tie_word_embeddings ? 0 : 1));
    for (const auto& parameter : rig->stage().parameters()) {
      if (!parameter->learns()) continue;
      const Weight& weight = *parameter->weight;
      const std::string gradient = weight.name() + ".gradient";
      const auto expected = projected(side, gradients.at(gradient), weight.rows(), weight.cols(),
                                      projections.at(weight.name()).data<float>());
      EXPECT_LE(relative_error(results.at(gradient).data<float>(), expected), 1e-5)
          << (side == Side::left ? "left " : "right ") << weight.name();
    }
  }
}

// By how much of itself what a learner is given with `product` differs from the slope of the loss
// in f32, at most over the weights, slopes being along W + h P Sᵀ or W + h S Qᵀ. S is the projected
// gradient itself, so that the slope is the largest, and an error in any element counts.
double worst_slope(const std::string& model, const char* product) {
  const Golden golden(model);
  const ModelFiles files = open_model(golden_path(model).string());
  const std::vector<MicroBatch> parts = separated(golden.batch().micro_batches[0]);
  double worst = 0.0;
  for (const Side side : {Side::left, Side::right}) {
    ProjectingLearner learner(side);
    RigChoices choices;
    choices.arithmetic = std::make_unique<Arithmetic>(make_product(product, *choices.ops));
    StageRig rig(model_of(files), StageSpec::whole(files.config), learner, std::move(choices));
    rig.begin(golden.batch().targets);
    for (const MicroBatch& part : parts) rig.accumulate(DeviceBatch(part));
    FrozenLearner frozen;
    StageRig exact(model_of(files), StageSpec::whole(files.config), frozen);
    const auto loss = [&] {
      double sum = 0.0;
      for (const MicroBatch& part : parts) sum += exact.loss(DeviceBatch(part));
      return sum / static_cast<double>(golden.batch().targets);
    };
    const auto projections = states(rig.stage(), StateRole::moment);
    const auto gradients = states(rig.stage(), StateRole::gradient);
    for (size_t w = 0; w < rig.stage().parameters().size(); ++w) {
      if (!rig.stage().parameters()[w]->learns()) continue;
      const Weight& weight = *exact.stage().parameters()[w]->weight;
      const Tensor p = projections.at(weight.name());
      const Tensor r = gradients.at(weight.name() + ".gradient");
      std::vector<double> direction(static_cast<size_t>(weight.size()));
      double squares = 0.0, wanted = 0.0;
      for (int64_t i = 0; i < weight.size(); ++i) {
        const int64_t row = i / weight.cols(), col = i % weight.cols();
        const bool left = side == Side::left;
        double& of = direction[static_cast<size_t>(i)];
        for (int64_t k = 0; k < ProjectingSlot::kRank; ++k) {
          of += static_cast<double>(p.data<float>()[(left ? row : col) * p.cols() + k]) *
                static_cast<double>(r.data<float>()[(left ? col : row) * r.cols() + k]);
        }
        squares += of * of;
      }
      EXPECT_GT(squares, 0.0) << weight.name();
      for (double& of : direction) of /= std::sqrt(squares);
      for (int64_t i = 0; i < r.size(); ++i) {
        wanted += std::pow(static_cast<double>(r.data<float>()[i]), 2) / std::sqrt(squares);
      }
      auto* values = static_cast<float*>(weight.storage().bytes.raw());
      const std::vector<float> before(values, values + weight.size());
      const auto loss_at = [&](double step) {
        for (size_t i = 0; i < before.size(); ++i) {
          values[i] = static_cast<float>(static_cast<double>(before[i]) + step * direction[i]);
        }
        const double value = loss();
        std::copy(before.begin(), before.end(), values);
        return value;
      };
      constexpr double kStep = 0.02;
      const double slope = (8.0 * (loss_at(kStep) - loss_at(-kStep)) -
                            (loss_at(2.0 * kStep) - loss_at(-2.0 * kStep))) /
                           (12.0 * kStep);
      worst = worse(worst, std::abs(slope / wanted - 1.0));
    }
  }
  return worst;
}

// Products of integers have the slopes of another network (tests/products), and give thin products
// as f32 does.
TEST_P(ProjectingTest, GradientsAreSlopesOfTheLoss) {
  const auto ops = make_test_ops();
  const std::pair<const char*, double> limits[] = {{"f32", 1e-3}, {"bf16", 0.02}};
  for (const auto& [product, limit] : limits) {
    if (product == std::string("bf16") && !ops->has_bf16()) continue;
    EXPECT_LE(worst_slope(GetParam(), product), limit) << product;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ProjectingTest, ::testing::Values("gqa_tied", "mha_untied", "odd"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace jackscrew
