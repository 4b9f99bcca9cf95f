#include "session/evaluate.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <numbers>

#include "base/json_object.h"
#include "data/batch.h"
#include "session/fit.h"
#include "session/plan.h"

namespace jackscrew {

namespace {

// Sets everything that follows from the sum of the losses, in nats.
void set_loss(EvalResult& result, double sum) {
  result.loss = sum / static_cast<double>(std::max<int64_t>(1, result.tokens));
  result.perplexity = std::exp(result.loss);
  const auto bytes = static_cast<double>(result.bytes);
  result.bits_per_byte = result.bytes > 0 ? sum / std::numbers::ln2 / bytes : NAN;
}

}  // namespace

EvalResult& EvalResult::operator+=(const EvalResult& other) {
  const double sum =
      loss * static_cast<double>(tokens) + other.loss * static_cast<double>(other.tokens);
  tokens += other.tokens;
  bytes += other.bytes;
  records += other.records;
  set_loss(*this, sum);
  return *this;
}

JsonObject EvalResult::to_json() const {
  JsonObject json;
  json.add("loss", loss).add("perplexity", perplexity).add("bits_per_byte", bits_per_byte);
  json.add("tokens", tokens).add("bytes", bytes).add("records", records);
  return json;
}

SessionUse evaluation_use(const Recipe& recipe, const ModelFiles& files,
                          std::span<const Dataset> data) {
  constexpr int64_t kTokens = 2048;
  const int64_t before = virtual_tokens(recipe);
  const auto with_tokens = [&](int64_t tokens) {
    SessionUse use{.training = false,
                   .tokens = tokens,
                   .max_positions = recipe.sequence_len,
                   .kv_tokens = 0,
                   .logits_rows = 0};
    for (const Dataset& part : data) {  // one after another
      use.data_bytes =
          std::max(use.data_bytes, EvaluationBatches(part, tokens, before).step_bytes());
    }
    return use;
  };
  SessionUse use = with_tokens(std::max(recipe.sequence_len, kTokens));
  while (use.tokens > recipe.sequence_len && !has_room(recipe, files, use)) {
    use = with_tokens(std::max(recipe.sequence_len, use.tokens / 2));
  }
  return use;
}

EvalResult evaluate(Session& session, const Dataset& dataset, int64_t max_tokens,
                    const ProgressStyle& style) {
  const ScoreBatch score = [&](const StepBatch& batch, const ProgressCallback& progress) {
    return session.loss_sum(batch, progress);
  };
  return evaluate(score, dataset, max_tokens, session.virtual_tokens(), style);
}

EvalResult evaluate(const ScoreBatch& score, const Dataset& dataset, int64_t max_tokens,
                    int64_t virtual_tokens, const ProgressStyle& style) {
  EvalResult result;
  result.tokens = dataset.stats().trained_tokens;
  result.bytes = dataset.stats().trained_bytes;
  result.records = dataset.stats().used_records();
  const int64_t tokens = dataset.stats().tokens + dataset.size() * virtual_tokens;
  ProgressBar bar(std::cerr, style, "evaluating", tokens, "tokens");
  EvaluationBatches batches(dataset, max_tokens, virtual_tokens);
  double sum = 0.0;  // nats
  while (true) {
    const StepBatch batch = batches.next();  // the one before is gone
    if (batch.micro_batches.empty()) break;
    sum += score(batch, bar.callback());
  }
  bar.finish();
  set_loss(result, sum);
  return result;
}

}  // namespace jackscrew
