// What must not change the outcome of training: how tokens are packed and cut into micro-batches,
// recomputation, threads.
#include <gtest/gtest.h>

#include "tests/support/batches.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

using Values = std::map<std::string, std::vector<float>>;

// All that can be seen of a few steps of training.
struct Trace {
  std::vector<StepResult> results;
  std::vector<Values> gradients;  // before each update
  Values parameters;              // after the last
};

Trace train(Session& session, const std::vector<StepBatch>& steps) {
  Trace out;
  for (size_t step = 0; step < steps.size(); ++step) {
    session.accumulate(steps[step], 1e-3, static_cast<int64_t>(step));
    out.gradients.push_back(state_values(session.stage(), StateRole::gradient));
    out.results.push_back(session.update({.matrices = 0.01, .vectors = 0.01}));
  }
  out.parameters = state_values(session.stage(), StateRole::parameter);
  return out;
}

void expect_same_bits(const Trace& a, const Trace& b, const std::string& what) {
  ASSERT_EQ(a.results.size(), b.results.size());
  for (size_t step = 0; step < a.results.size(); ++step) {
    EXPECT_EQ(a.results[step].loss, b.results[step].loss) << what << " step " << step;
    EXPECT_EQ(a.results[step].grad_norm, b.results[step].grad_norm) << what << " step " << step;
    EXPECT_EQ(a.gradients[step], b.gradients[step]) << what << " step " << step;
  }
  EXPECT_EQ(a.parameters, b.parameters) << what;
}

void expect_close(const Values& actual, const Values& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, values] : expected) {
    EXPECT_LE(relative_error(actual.at(name).data(), values), tolerance) << what << " " << name;
  }
}

// Both ways of learning, with all that is random in them.
const std::vector<std::vector<std::string>> kMethods = {
    {"method=full"},
    {"method=lora", "lora_dropout=0.1"},
    {"method=full", "product=int8"},
    {"method=lora", "lora_dropout=0.1", "product=int8"},
    {"method=lora", "lora_dropout=0.1", "use_dora=true", "storage=nf4"},
    {"method=full", "product=int8", "product_exclude=q_proj,layers.1.mlp.*,lm_head"},
    {"method=full", "product=int8", "int8_dw=int8"},
    {"method=full", "product=w4a8", "storage=bf16"},
    {"method=full", "product=int4", "product_exclude=layers.0.*"},
    {"method=lora", "lora_dropout=0.1", "product=int4"},
    {"method=full", "product=int4", "int4_mode=paper", "int4_block=search", "int4_cold_steps=2"},
    {"method=lora", "lora_dropout=0.1", "use_dora=true", "product=int4", "int4_mode=paper",
     "int4_steps=dynamic"}};

std::vector<std::string> with(std::vector<std::string> settings, const std::string& more) {
  settings.push_back(more);
  return settings;
}

class TrainingTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Session> session(const std::vector<std::string>& settings, int64_t tokens) const {
    return make_session(make_recipe(settings), files_, training_use(tokens));
  }
  MicroBatch random_batch(const std::vector<int32_t>& lengths, uint32_t seed) const {
    return random_micro_batch(files_.config.vocab_size, lengths, seed);
  }
  // Three steps, of one and of two micro-batches, long enough for several tiles of everything.
  std::vector<StepBatch> some_steps() const {
    return {step_of({random_batch({150, 40}, 1)}),
            step_of({random_batch({31, 1, 90}, 2), random_batch({70}, 3)}),
            step_of({random_batch({129}, 4)})};
  }

  const ModelFiles files_ = open_model(golden_path(GetParam()).string());
};

// Minutes with sanitizers.
class SlowTrainingTest : public TrainingTest {};

TEST_P(TrainingTest, PackedOrOneAfterAnother) {
  const MicroBatch packed = random_batch({13, 1, 40, 2, 25}, 5);
  const auto run = session({"method=full"}, packed.tokens());
  run->accumulate(step_of({packed}), 0.0, 0);
  const Values together = state_values(run->stage(), StateRole::gradient);
  const double loss = run->update({}).loss;
  run->accumulate(step_of(separated(packed)), 0.0, 0);
  expect_close(state_values(run->stage(), StateRole::gradient), together, 1e-5, "one by one");
  EXPECT_NEAR(run->update({}).loss, loss, 1e-6 * loss);
}

TEST_P(TrainingTest, FourMicroBatchesAreOneBatch) {
  const std::vector<MicroBatch> parts = {random_batch({40}, 6), random_batch({3, 2}, 7),
                                         random_batch({11, 20}, 8), random_batch({17}, 9)};
  EXPECT_NE(parts[0].target_count, parts[1].target_count);
  const MicroBatch whole = joined(parts);
  // With int8 too: its random numbers are those of the token, wherever it is computed.
  for (const char* product : {"product=int8", "product=f32"}) {
    const auto run = session({"method=full", product}, whole.tokens());
    const Trace once = train(*run, {step_of({whole})});
    const auto again = session({"method=full", product}, whole.tokens());
    const Trace cut = train(*again, {step_of(parts)});
    expect_close(cut.gradients[0], once.gradients[0], 1e-5, std::string("four parts ") + product);
    EXPECT_NEAR(cut.results[0].loss, once.results[0].loss, 1e-6 * once.results[0].loss);
    EXPECT_NEAR(cut.results[0].grad_norm, once.results[0].grad_norm,
                1e-5 * once.results[0].grad_norm);
  }

  // The same batch four times is its own mean.
  const auto run = session({"method=full"}, whole.tokens());
  const Trace once = train(*run, {step_of({whole})});
  const auto repeated = session({"method=full"}, whole.tokens());
  const Trace four = train(*repeated, {step_of({whole, whole, whole, whole})});
  expect_close(four.gradients[0], once.gradients[0], 1e-5, "four times");
  EXPECT_NEAR(four.results[0].loss, once.results[0].loss, 1e-6 * once.results[0].loss);
}

TEST_P(TrainingTest, RecomputationChangesNothing) {
  for (const auto& method : kMethods) {
    const auto kept = session(with(method, "gradient_checkpointing=false"), 200);
    const auto recomputed = session(with(method, "gradient_checkpointing=true"), 200);
    EXPECT_LT(recomputed->memory().ledger().peak, kept->memory().ledger().peak);
    expect_same_bits(train(*recomputed, some_steps()), train(*kept, some_steps()), method[0]);
  }
}

TEST_P(SlowTrainingTest, ThreadsDoNotChangeBits) {
  for (const auto& method : kMethods) {
    const auto with_threads = [&](int threads) {
      const auto run = session(with(method, fmt::format("threads={}", threads)), 200);
      EXPECT_EQ(run->ops().threads(), threads);
      return train(*run, some_steps());
    };
    const Trace one = with_threads(1);
    expect_same_bits(with_threads(2), one, method[0] + " 2 threads");
    expect_same_bits(with_threads(3), one, method[0] + " 3 threads");
  }
}

TEST_P(TrainingTest, MicroBatchWithoutTargetsAddsNothing) {
  const MicroBatch useful = random_batch({20, 9}, 10);
  MicroBatch mute = random_batch({15}, 11);
  std::fill(mute.targets.begin(), mute.targets.end(), -1);
  mute.target_count = 0;
  const auto plain = session({"method=full"}, 64);
  const auto mixed = session({"method=full"}, 64);
  expect_same_bits(train(*mixed, {step_of({mute, useful, mute})}),
                   train(*plain, {step_of({useful})}), "mute micro-batches");
  EXPECT_EQ(mixed->loss_sum(step_of({mute})), 0.0);

  // A whole step without targets: no loss and no gradient, and nothing breaks.
  const auto nothing = session({"method=full"}, 64);
  const Values before = state_values(nothing->stage(), StateRole::parameter);
  nothing->accumulate(step_of({mute}), 1e-3, 0);
  const StepResult result = nothing->update({});
  EXPECT_EQ(result.loss, 0.0);
  EXPECT_EQ(result.grad_norm, 0.0);
  EXPECT_TRUE(result.finite);
  EXPECT_EQ(state_values(nothing->stage(), StateRole::parameter), before);
}

// As transformers' Trainer has it: decayed is every matrix, no norm and no bias.
TEST_P(TrainingTest, WeightDecayLeavesVectorsAlone) {
  const StepBatch step = step_of({random_batch({20}, 12)});
  const auto after = [&](const WeightDecay& decay) {
    const auto run = session({"method=full"}, 64);
    run->accumulate(step, 0.1, 0);
    run->update(decay);
    return state_values(run->stage(), StateRole::parameter);
  };
  const Values none = after({});
  const Values matrices = after({.matrices = 0.5});
  const Values all = after({.matrices = 0.5, .vectors = 0.5});
  for (const auto& [name, values] : none) {
    const bool vector = name.ends_with("norm.weight") || name.ends_with(".bias");
    EXPECT_EQ(values == matrices.at(name), vector) << name;
    EXPECT_EQ(matrices.at(name) == all.at(name), !vector) << name;
  }
}

TEST_P(TrainingTest, StepThatIsNotFiniteIsSkipped) {
  const StepBatch step = step_of({random_batch({20}, 12)});
  const auto run = session({"method=full"}, 64);
  train(*run, {step});
  const Values before = state_values(run->stage(), StateRole::parameter);
  run->accumulate(step, 1e-3, 1);
  states(run->stage(), StateRole::gradient).begin()->second.data<float>()[0] = std::nanf("");
  const StepResult result = run->update({.matrices = 0.01, .vectors = 0.01});
  EXPECT_FALSE(result.finite);
  EXPECT_EQ(state_values(run->stage(), StateRole::parameter), before);
  for (const auto& [name, values] : state_values(run->stage(), StateRole::gradient)) {
    EXPECT_EQ(std::count(values.begin(), values.end(), 0.0f), static_cast<ptrdiff_t>(values.size()))
        << name;
  }
  run->accumulate(step, 1e-3, 2);
  EXPECT_TRUE(run->update({.matrices = 0.01, .vectors = 0.01}).finite);
}

// bf16 keeps 8 significant bits of every operand. Errors of a few thousand independent products
// average out to far less than one rounding, 2^-8, in a loss; 1e-2 leaves room for unlucky models.
TEST_P(TrainingTest, Bf16ProductStaysClose) {
  if (detect_isa() < IsaLevel::v4_bf16) GTEST_SKIP() << "this CPU has no bf16 products";
  const StepBatch step = Golden(GetParam()).batch();
  const auto exact = session({"method=full", "product=f32"}, step.tokens);
  const auto rounded = session({"method=full", "product=bf16"}, step.tokens);
  const Trace a = train(*exact, {step});
  const Trace b = train(*rounded, {step});
  EXPECT_NEAR(b.results[0].loss, a.results[0].loss, 1e-2 * a.results[0].loss);
  EXPECT_NE(b.results[0].loss, a.results[0].loss);
  double ab = 0.0, aa = 0.0, bb = 0.0;
  for (const auto& [name, values] : a.gradients[0]) {
    const std::vector<float>& other = b.gradients[0].at(name);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto x = static_cast<double>(values[i]);
      const auto y = static_cast<double>(other[i]);
      ab += x * y;
      aa += x * x;
      bb += y * y;
    }
  }
  EXPECT_GT(ab / std::sqrt(aa * bb), 0.999);
}

const auto kModels =
    ::testing::Values("gqa_tied", "mha_untied", "odd", "mistral", "qwen2_yarn", "qwen3", "smollm3");
const auto kModelName = [](const auto& test) { return std::string(test.param); };
INSTANTIATE_TEST_SUITE_P(Models, TrainingTest, kModels, kModelName);
INSTANTIATE_TEST_SUITE_P(Models, SlowTrainingTest, kModels, kModelName);

}  // namespace
}  // namespace jackscrew
