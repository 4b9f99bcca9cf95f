// Two stages of a pipeline with several micro-batches under way.
#include <gtest/gtest.h>

#include <deque>

#include "learners/full.h"
#include "products/int8.h"
#include "tests/model/small_model.h"
#include "tests/support/products.h"
#include "tests/support/stage_rig.h"

namespace jackscrew {
namespace {

// The first two blocks and the last one, each with its share of a step's work.
class Pipeline {
 public:
  Pipeline(const ModelConfig& config, bool recompute, const char* product)
      : first_(random_model(config), {0, 2, true, false}, *learner_, choices(product)),
        second_(random_model(config), {2, config.num_hidden_layers, false, true}, *learner_,
                choices(product)),
        recompute_(recompute) {}

  // The first stage begins a micro-batch before it ends the one before: one forward, one backward.
  void one_forward_one_backward(const std::deque<RandomBatch>& batches) {
    begin(batches);
    forward(batches[0]);
    for (size_t i = 0; i < batches.size(); ++i) {
      if (i + 1 < batches.size()) {
        forward(batches[i + 1]);
        most_under_way_ = std::max(most_under_way_, under_way_.size());
      }
      finish(batches[i]);
    }
  }
  void one_after_another(const std::deque<RandomBatch>& batches) {
    begin(batches);
    for (const RandomBatch& batch : batches) {
      forward(batch);
      finish(batch);
    }
  }

  const StageRig& first() const { return first_; }
  const StageRig& second() const { return second_; }
  double loss() { return second_.scalars().loss_sum; }
  size_t most_under_way() const { return most_under_way_; }

 private:
  static RigChoices choices(const char* product) {
    RigChoices out;
    out.arithmetic = std::make_unique<Arithmetic>(make_product(product, *out.ops));
    return out;
  }
  void begin(const std::deque<RandomBatch>& batches) {
    int64_t targets = 0;
    for (const RandomBatch& batch : batches) targets += batch.targets();
    first_.begin(targets);
    second_.begin(targets);
  }
  void forward(const Batch& batch) {
    under_way_.push_back(first_.forward(batch, nullptr, recompute_));
  }
  // Through the second stage and back to the beginning.
  void finish(const Batch& batch) {
    const auto above = second_.forward(batch, &under_way_.front()->hidden, recompute_);
    second_.backward_from_loss(batch, *above);
    first_.backward(batch, *under_way_.front(), above->d);
    under_way_.pop_front();
  }

  std::unique_ptr<Learner> learner_ = make_full_learner();
  StageRig first_, second_;
  bool recompute_;
  std::deque<std::unique_ptr<StageRig::Flight>> under_way_;  // in the first stage
  size_t most_under_way_ = 0;
};

void expect_same_gradients(const StageRig& a, const StageRig& b) {
  const auto wanted = states(b.stage(), StateRole::gradient);
  ASSERT_FALSE(wanted.empty());
  for (const auto& [name, gradient] : states(a.stage(), StateRole::gradient)) {
    EXPECT_TRUE(same_bits(gradient, wanted.at(name))) << name;
  }
}

// int8 has random numbers of its own, those of the token.
TEST(Pipeline, MicroBatchesUnderWayDoNotMeet) {
  for (const char* product : {"f32", "int8"}) {
    for (const bool recompute : {false, true}) {
      const ModelConfig config = small_model();
      std::deque<RandomBatch> batches;
      int64_t before = 0;
      for (const int32_t tokens : {17, 5, 29, 11}) {
        batches.emplace_back(config, tokens, static_cast<uint32_t>(tokens), before);
        before += tokens;
      }
      Pipeline side_by_side(config, recompute, product);
      side_by_side.one_forward_one_backward(batches);
      EXPECT_EQ(side_by_side.most_under_way(), 2u);
      Pipeline apart(config, recompute, product);
      apart.one_after_another(batches);
      EXPECT_GT(apart.loss(), 0.0);
      EXPECT_EQ(side_by_side.loss(), apart.loss());
      expect_same_gradients(side_by_side.first(), apart.first());
      expect_same_gradients(side_by_side.second(), apart.second());
    }
  }
}

}  // namespace
}  // namespace jackscrew
