// What calibration shows the layers, against the engine's own forward pass.
#include "conversion/calibration.h"

#include <cmath>

#include "tests/support/golden_checks.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

constexpr int64_t kLength = 16;
// More than a batch of 2048 tokens, and the last batch is a smaller one.
constexpr int64_t kSequences = 131;

class Calibration : public testing::TestWithParam<const char*> {
 protected:
  Calibration() : files_(open_model(golden_path(GetParam()).string())) {
    text_ = {kSequences, kLength, {}};
    for (int32_t i = 0; i < text_.tokens(); ++i) {
      text_.ids.push_back(i * 31 % static_cast<int32_t>(files_.config.vocab_size));
    }
  }
  static Recipe recipe(const std::string& product) {
    return make_recipe({"method=lora", "threads=2", "product=" + product});
  }
  static std::vector<float> values(const Tensor& tensor) {
    return {tensor.data<float>(), tensor.data<float>() + tensor.size()};
  }
  static void halve(const Weight& weight) {
    const Tensor w = weight.as_f32();
    for (int64_t i = 0; i < w.size(); ++i) w.data<float>()[i] *= 0.5f;
  }

  ModelFiles files_;
  CalibrationText text_;
};

// A part that is changed once its input has been observed counts, as changed, for all after it.
TEST_P(Calibration, ChangedLayersAreReadByThoseAfterThem) {
  for (const char* product : {"f32", "bf16"}) {
    SCOPED_TRACE(product);
    const Recipe how = recipe(product);
    CalibrationRun as_seen(how, files_, text_), beforehand(how, files_, text_);
    for (int64_t block = 0; block < files_.config.num_hidden_layers; ++block) {
      as_seen.begin_block();
      beforehand.begin_block();
      for (const BlockPart part : kBlockParts) {
        for (const Weight* weight : beforehand.linears(part)) halve(*weight);
      }
      for (const BlockPart part : kBlockParts) {
        const Hessian seen = as_seen.observe(part, {});
        EXPECT_EQ(seen.tokens(), text_.tokens());
        EXPECT_EQ(values(seen.matrix()), values(beforehand.observe(part, {}).matrix()));
        for (const Weight* weight : as_seen.linears(part)) halve(*weight);
      }
      as_seen.end_block({});
      beforehand.end_block({});
      ASSERT_EQ(values(as_seen.stream()), values(beforehand.stream()));
    }
  }
}

// Unchanged layers leave the stream of the model's own forward pass.
TEST_P(Calibration, TheStreamIsTheModels) {
  const Recipe how = recipe("f32");
  CalibrationRun run(how, files_, text_);
  for (int64_t block = 0; block < files_.config.num_hidden_layers; ++block) {
    run.begin_block();
    for (const BlockPart part : kBlockParts) run.observe(part, {});
    run.end_block({});
  }
  const SessionUse use{.training = false,
                       .tokens = kLength,
                       .max_positions = kLength,
                       .kv_tokens = 0,
                       .logits_rows = kLength};
  const auto session = make_session(how, files_, use);
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace, 1 << 20);
  Context context{session->ops(), scratch, nullptr};
  const OwnedTensor ours(memory, Purpose::activations, DType::f32,
                         {kLength, files_.config.vocab_size});
  for (const int64_t sequence : {int64_t{0}, kSequences - 1}) {
    const int64_t first = sequence * kLength;
    session->stage().logits(context, run.stream().rows(first, first + kLength), ours.view());
    const auto ids = std::span(text_.ids).subspan(static_cast<size_t>(first), kLength);
    const Tensor theirs = session->logits(ids, kLength, false);
    float off = 0.0f, largest = 0.0f;
    for (int64_t i = 0; i < theirs.size(); ++i) {
      const float value = theirs.data<float>()[i];
      off = worse(off, std::abs(ours.view().data<float>()[i] - value));
      largest = std::max(largest, std::abs(value));
    }
    EXPECT_LT(off, 1e-5f * largest);
  }
}

// Grouped heads, biases, norms of heads, heads that are wider than the MLP, blocks that do not
// rotate.
INSTANTIATE_TEST_SUITE_P(Models, Calibration,
                         testing::Values("gqa_tied", "odd", "qwen2_yarn", "qwen3", "smollm3"));

}  // namespace
}  // namespace jackscrew
