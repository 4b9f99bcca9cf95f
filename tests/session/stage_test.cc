// What a stage promises beyond the whole model: pipelines, and no work that nobody asked for.
#include "model/stage.h"

#include <gtest/gtest.h>

#include <set>

#include "learners/frozen.h"
#include "learners/full.h"
#include "tests/support/batches.h"
#include "tests/support/counting_ops.h"
#include "tests/support/golden_rig.h"

namespace jackscrew {
namespace {

class PipelineTest : public ::testing::TestWithParam<const char*> {};

// Two stages, two micro-batches, in the order of 1F1B: the first stage has both in flight at once.
TEST_P(PipelineTest, TwoStagesAreOneModel) {
  const ModelFiles files = open_model(golden_path(GetParam()).string());
  const int64_t layers = files.config.num_hidden_layers;
  const auto learner = make_full_learner();
  for (const bool recompute : {false, true}) {
    const MicroBatch micro_a = random_micro_batch(files.config.vocab_size, {9, 17}, 1);
    const MicroBatch micro_b = random_micro_batch(files.config.vocab_size, {23}, 2);
    const DeviceBatch a(micro_a);
    const DeviceBatch b(micro_b, a.tokens());
    const int64_t targets = micro_a.target_count + micro_b.target_count;
    StageRig whole(model_of(files), StageSpec::whole(files.config), *learner);
    whole.begin(targets);
    whole.accumulate(a, recompute);
    whole.accumulate(b, recompute);

    StageRig first(model_of(files), {0, 1, true, false}, *learner);
    StageRig second(model_of(files), {1, layers, false, true}, *learner);
    first.begin(targets);
    second.begin(targets);
    const auto first_a = first.forward(a, nullptr, recompute);
    const auto second_a = second.forward(a, &first_a->hidden, recompute);
    const auto first_b = first.forward(b, nullptr, recompute);
    second.backward_from_loss(a, *second_a);
    first.backward(a, *first_a, second_a->d);
    const auto second_b = second.forward(b, &first_b->hidden, recompute);
    second.backward_from_loss(b, *second_b);
    first.backward(b, *first_b, second_b->d);

    EXPECT_EQ(second.scalars().loss_sum, whole.scalars().loss_sum);
    EXPECT_GT(whole.scalars().loss_sum, 0.0);
    const auto expected = states(whole.stage(), StateRole::gradient);
    const auto in_first = states(first.stage(), StateRole::gradient);
    const auto in_second = states(second.stage(), StateRole::gradient);
    for (const auto& [name, gradient] : expected) {
      const bool left = in_first.contains(name);
      const bool right = in_second.contains(name);
      ASSERT_TRUE(left || right) << name;
      if (!left || !right) {
        EXPECT_TRUE(same_bits(left ? in_first.at(name) : in_second.at(name), gradient)) << name;
        continue;
      }
      // A tied embedding, of which both stages hold a copy.
      EXPECT_TRUE(files.config.tie_word_embeddings) << name;
      std::vector<float> sum(static_cast<size_t>(gradient.size()));
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] = in_first.at(name).data<float>()[i] + in_second.at(name).data<float>()[i];
      }
      const float* whole_gradient = gradient.data<float>();
      EXPECT_LE(relative_error(sum.data(), {whole_gradient, whole_gradient + sum.size()}), 1e-6)
          << name;
    }
    EXPECT_EQ(in_first.size() + in_second.size(),
              expected.size() + (files.config.tie_word_embeddings ? 1 : 0));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PipelineTest,
                         ::testing::Values("gqa_tied", "mha_untied", "qwen2_yarn", "qwen3",
                                           "smollm3"),
                         [](const auto& test) { return std::string(test.param); });

// Learns, or pretends to, the weights of the named modules of one layer.
class OneLayerLearner : public Learner {
 public:
  OneLayerLearner(int64_t layer, std::set<std::string> modules)
      : layer_(layer), modules_(std::move(modules)) {}
  const char* name() const override { return "one layer"; }
  bool changes(const WeightSpec&) const override { return true; }
  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) override {
    if (weight.spec().layer != layer_ || !modules_.contains(weight.spec().module)) {
      return std::make_unique<UnwantedSlot>();
    }
    return make_full_slot(context, weight);
  }

 private:
  class UnwantedSlot : public FrozenSlot {
   public:
    void backward(const Gradient& g, const Tensor*) override {
      ADD_FAILURE() << g.weight().name() << " learns nothing, and was given a gradient";
    }
  };
  int64_t layer_;
  std::set<std::string> modules_;
};

class CountedRig {
 public:
  CountedRig(const ModelFiles& files, Learner& learner) {
    auto ops = std::make_unique<CountingOps>(make_test_ops());
    counts_ = ops.get();
    rig_ = std::make_unique<StageRig>(model_of(files), StageSpec::whole(files.config), learner,
                                      RigChoices{.ops = std::move(ops)});
    rig_->begin(1);
  }
  // The multiply-adds of gemm in backward, the head's included.
  int64_t backward(const DeviceBatch& batch) {
    const auto flight = rig_->forward(batch, nullptr);
    counts_->reset();
    rig_->backward_from_loss(batch, *flight);
    return counts_->multiply_adds;
  }
  int64_t attention_backwards() const { return counts_->attention_backwards; }
  StageRig& rig() { return *rig_; }

 private:
  CountingOps* counts_ = nullptr;
  std::unique_ptr<StageRig> rig_;
};

TEST(StageTest, BackwardStopsBelowTheLowestThatLearns) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const ModelConfig& config = files.config;
  const MicroBatch micro = random_micro_batch(config.vocab_size, {12, 8}, 3);
  const DeviceBatch batch(micro);
  const int64_t tokens = batch.tokens();
  const int64_t hidden = config.hidden_size;
  const int64_t query = config.num_attention_heads * config.head_dim;
  // Forward and dx of the head for the rows with a target; dx of the MLP and of o_proj.
  const int64_t head = 2 * micro.target_count * config.vocab_size * hidden;
  const int64_t above_attention = tokens * hidden * (3 * config.intermediate_size + query);
  const auto full_learner = make_full_learner();
  CountedRig full(files, *full_learner);
  const int64_t everything = full.backward(batch);
  EXPECT_EQ(full.attention_backwards(), config.num_hidden_layers);
  const auto expected = states(full.rig().stage(), StateRole::gradient);

  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    OneLayerLearner learner(layer, {"q_proj"});
    CountedRig rig(files, learner);
    const int64_t work = rig.backward(batch);
    EXPECT_EQ(rig.attention_backwards(), config.num_hidden_layers - layer);
    EXPECT_LT(work, everything);
    if (layer + 1 == config.num_hidden_layers) {
      // dW of q_proj, and nothing of the inputs of q, k and v.
      EXPECT_EQ(work, head + above_attention + tokens * hidden * query);
    }
    for (const auto& [name, gradient] : states(rig.rig().stage(), StateRole::gradient)) {
      EXPECT_TRUE(same_bits(gradient, expected.at(name))) << name;
    }
  }
  // The lowest block's own norm needs what its neighbours need not.
  OneLayerLearner norm_learner(config.num_hidden_layers - 1, {"input_layernorm"});
  CountedRig norm(files, norm_learner);
  norm.backward(batch);
  for (const auto& [name, gradient] : states(norm.rig().stage(), StateRole::gradient)) {
    EXPECT_TRUE(same_bits(gradient, expected.at(name))) << name;
  }
}

TEST(StageTest, RowsWithoutATargetDoNotPassTheHead) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  FrozenLearner learner;
  MicroBatch micro = random_micro_batch(files.config.vocab_size, {30}, 4);
  CountedRig rig(files, learner);
  for (const int64_t wanted : {micro.target_count, int64_t{3}, int64_t{0}}) {
    for (int32_t& target : micro.targets) {
      if (target < 0 || micro.target_count <= wanted) continue;
      target = -1;
      --micro.target_count;
    }
    // Forward and dx: a frozen model's backward goes no further than the head.
    EXPECT_EQ(rig.backward(DeviceBatch(micro)),
              2 * wanted * files.config.vocab_size * files.config.hidden_size);
    EXPECT_EQ(rig.attention_backwards(), 0);
  }
}

}  // namespace
}  // namespace jackscrew
