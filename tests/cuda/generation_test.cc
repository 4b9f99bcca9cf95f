// Generation on a GPU: the work of a token is recorded once, and replayed for all that follow.
#include <gtest/gtest.h>

#include "generation/generate.h"
#include "tests/support/golden.h"
#include "tests/support/gpu.h"

namespace jackscrew {
namespace {

constexpr int64_t kPiece = 6;
constexpr int64_t kContext = 40;

// A model on the GPU with a cache, that is asked for logits.
class CachedModel {
 public:
  CachedModel(const std::string& model, const std::vector<std::string>& settings)
      : files_(open_model(golden_path(model).string())) {
    std::vector<std::string> all = {"method=full", "device=cuda:0"};
    all.insert(all.end(), settings.begin(), settings.end());
    const Recipe recipe = make_recipe(all);
    const SessionUse use{.training = false,
                         .tokens = kPiece,
                         .max_positions = kContext,
                         .kv_tokens = kContext,
                         .logits_rows = 1};
    const SessionPlan plan = Session::rehearse(recipe, files_, use);
    planned_ = plan.ledger.peak;
    session_.emplace(recipe, files_, use, plan);
  }

  Session& session() { return *session_; }
  RepeatCounts counts() { return session_->ops().repeat_counts(); }
  std::vector<float> logits(std::span<const int32_t> ids, bool use_cache = true) {
    const Tensor on_device = session_->logits(ids, 1, use_cache);
    std::vector<float> out(static_cast<size_t>(on_device.size()));
    session_->ops().copy(Tensor(out.data(), DType::f32, {1, on_device.cols()}), on_device);
    return out;
  }
  bool took_what_was_planned() const { return session_->memory().ledger().peak == planned_; }

 private:
  ModelFiles files_;
  int64_t planned_ = 0;
  std::optional<Session> session_;
};

std::vector<int32_t> some_text(int32_t tokens) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < tokens; ++i) ids.push_back((i * 13 + 5) % 50);
  return ids;
}

// A conversation: a prompt in pieces, an answer, a cache that is cut and goes on, another text in
// between, and one that begins anew with a single token. Returns the logits after each call.
// `before_each` is called before every token that comes alone.
std::vector<std::vector<float>> converse(CachedModel& model,
                                         const std::function<void()>& before_each) {
  const std::vector<int32_t> text = some_text(kContext);
  const std::span<const int32_t> ids = text;
  std::vector<std::vector<float>> out;
  const auto one_by_one = [&](size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      before_each();
      out.push_back(model.logits(ids.subspan(i, 1)));
    }
  };
  out.push_back(model.logits(ids.first(6)));
  out.push_back(model.logits(ids.subspan(6, 5)));
  one_by_one(11, 17);
  model.session().keep_cached(9);
  one_by_one(20, 23);
  out.push_back(model.logits(ids.subspan(30, 4)));
  out.push_back(model.logits(ids.first(3), false));
  one_by_one(23, 26);
  model.session().keep_cached(0);
  one_by_one(0, kContext);  // the cache is full
  return out;
}

class GpuGeneration : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string model() {
    const std::string param = GetParam();
    return param.substr(0, param.find(' '));
  }
  static std::vector<std::string> settings() {
    const std::string param = GetParam();
    const size_t space = param.find(' ');
    return space == std::string::npos ? std::vector<std::string>()
                                      : settings_of(param.substr(space + 1));
  }
};

TEST_P(GpuGeneration, ReplayedTokensHaveTheBitsOfThoseThatAreIssued) {
  SKIP_WITHOUT_GPU();
  CachedModel replaying(model(), settings());
  const auto got = converse(replaying, [] {});
  const RepeatCounts counts = replaying.counts();
  EXPECT_EQ(counts.refused, 0) << counts.refusal;
  EXPECT_EQ(counts.recorded, 1);
  EXPECT_EQ(counts.issued, 1);
  EXPECT_EQ(counts.replayed, 6 + 3 + 3 + kContext - 1);
  EXPECT_TRUE(replaying.took_what_was_planned());
  CachedModel issuing(model(), settings());
  // As after weights have changed places: nothing that was recorded is used.
  const auto wanted = converse(issuing, [&] { issuing.session().restored(); });
  EXPECT_EQ(issuing.counts().replayed, 0);
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], wanted[i]) << i;
}

// With the same text before it, a token has the logits that it has without a cache.
TEST_P(GpuGeneration, ReplayedTokensAreThoseOfTheWholeText) {
  SKIP_WITHOUT_GPU();
  CachedModel model(this->model(), settings());
  const std::vector<int32_t> text = some_text(kPiece);
  const std::span<const int32_t> ids = text;
  // Where operands are rounded, a token alone is multiplied by other kernels than several; logits
  // of another token would differ by about 1.
  const double tolerance = settings().empty() ? 1e-5 : 0.15;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::vector<float> cached = model.logits(ids.subspan(i, 1));
    EXPECT_LE(relative_error(cached.data(), model.logits(ids.first(i + 1), false)), tolerance) << i;
  }
  EXPECT_GT(model.counts().replayed, 0);
}

// The report's answers: their cache lies where a step leaves its activations.
TEST_P(GpuGeneration, ATrainingSessionAnswersBetweenItsSteps) {
  SKIP_WITHOUT_GPU();
  std::vector<std::string> all = {"method=lora", "learning_rate=0", "device=cuda:0"};
  for (const std::string& setting : settings()) all.push_back(setting);
  const Recipe recipe = make_recipe(all);
  const ModelFiles files = open_model(golden_path(model()).string());
  const StepBatch batch = Golden(model()).batch();
  SessionUse use = training_use(batch.tokens);
  use.logits_rows = 1;
  const SessionPlan plan = Session::rehearse(recipe, files, use);
  Session session(recipe, files, use, plan);
  const std::vector<int32_t> prompt = some_text(5);
  const GenerationOptions options{
      .sampling = {}, .max_new_tokens = 8, .end_tokens = {}, .vocab_size = 1 << 20};
  const auto last_logits = [&] {
    generate(session, prompt, options, [](int32_t) {});
    const int32_t token = 7;
    const Tensor on_device = session.logits(std::span(&token, 1), 1, true);
    std::vector<float> out(static_cast<size_t>(on_device.size()));
    session.ops().copy(Tensor(out.data(), DType::f32, {1, on_device.cols()}), on_device);
    return out;
  };
  const std::vector<float> before = last_logits();
  session.accumulate(batch, 0.0, 0);
  session.update({});
  EXPECT_EQ(last_logits(), before);
  EXPECT_GT(session.ops().repeat_counts().replayed, 0);
  EXPECT_EQ(session.memory().ledger().peak, plan.ledger.peak);
}

INSTANTIATE_TEST_SUITE_P(Models, GpuGeneration,
                         ::testing::Values("gqa_tied", "mistral", "qwen2_yarn", "qwen3",
                                           "gqa_tied storage=bf16 product=bf16",
                                           "qwen3 storage=bf16 product=bf16",
                                           "gqa_tied storage=nf4 product=bf16",
                                           "gqa_tied storage=nf4 product=f32",
                                           "gqa_tied storage=int8_row product=int8"));

TEST(GpuGeneration, NoTokenGoesBeyondTheCache) {
  SKIP_WITHOUT_GPU();
  CachedModel model("gqa_tied", {});
  for (const int32_t id : some_text(kContext)) model.logits(std::span(&id, 1));
  const int32_t more = 1;
  EXPECT_THROW(model.logits(std::span(&more, 1)), Error);
}

}  // namespace
}  // namespace jackscrew
