#include "conversion/compare.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <span>
#include <vector>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/parallel.h"
#include "data/batch.h"
#include "session/fit.h"
#include "session/loading.h"

namespace jackscrew {

namespace {

// Tokens per chunk: enough to keep the products busy, few enough that the logits of two models stay
// small.
constexpr int64_t kChunk = 256;

// Every example is scored by itself: a micro-batch has one at least.
constexpr int64_t kOneExample = 1;

bool reads_in_place(const Device& device) {
  return device.shares_host_memory();
}

// The logits of a chunk of tokens, on the host: those of the session, or a copy of them.
class ChunkLogits {
 public:
  void read(Session& session, std::span<const int32_t> ids) {
    const auto count = std::ssize(ids);
    // The first time also takes what is done once, such as reading a mapped file: it is not timed.
    if (tokens_ == 0) {
      session.logits(ids, count, true);
      session.ops().finish();
      session.keep_cached(0);
    }
    const Stopwatch watch;
    logits_ = session.logits(ids, count, true);
    if (!reads_in_place(session.device())) {
      copy_.resize(static_cast<size_t>(logits_.size()));
      const Tensor on_host(copy_.data(), DType::f32, {count, logits_.cols()});
      session.ops().copy(on_host, logits_);
      logits_ = on_host;
    }
    session.ops().finish();
    tokens_ += count;
    seconds_ += watch.seconds();
  }
  std::span<const float> row(int64_t index) const {
    return {logits_.data<float>() + index * logits_.row_stride(),
            static_cast<size_t>(logits_.cols())};
  }
  int64_t cols() const { return logits_.cols(); }
  double rate() const { return static_cast<double>(tokens_) / seconds_; }

 private:
  Tensor logits_;            // f32 [count, vocab], until the session's next
  std::vector<float> copy_;  // [count * vocab], see copied_bytes()
  int64_t tokens_ = 0;       // in all chunks
  double seconds_ = 0;
};

// The contribution of one target to the sums.
struct Terms {
  double reference_loss = 0, loss = 0, divergence = 0, agreement = 0;
};

double log_sum(std::span<const float> logits, size_t& likeliest) {
  likeliest = static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const double most = static_cast<double>(logits[likeliest]);
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - most);
  return most + std::log(sum);
}

Terms compare_row(std::span<const float> p, std::span<const float> q, size_t target) {
  size_t likeliest_p = 0, likeliest_q = 0;
  const double log_p = log_sum(p, likeliest_p), log_q = log_sum(q, likeliest_q);
  Terms terms{log_p - static_cast<double>(p[target]), log_q - static_cast<double>(q[target]), 0.0,
              likeliest_p == likeliest_q ? 1.0 : 0.0};
  for (size_t i = 0; i < p.size(); ++i) {
    const double of_p = static_cast<double>(p[i]) - log_p;
    terms.divergence += std::exp(of_p) * (of_p - (static_cast<double>(q[i]) - log_q));
  }
  return terms;
}

// What a comparison takes to have the logits of a model on the host, beside its session.
int64_t copied_bytes(const ScoredModel& model, const SessionUse& use) {
  if (reads_in_place(*open_device(model.recipe))) return 0;
  return checked_mul(checked_mul(use.logits_rows, model.files.config.vocab_size),
                     dtype_size(DType::f32));
}

SessionUse with_data(SessionUse use, int64_t bytes) {
  use.data_bytes = checked_add(use.data_bytes, bytes);
  return use;
}

}  // namespace

JsonObject Comparison::to_json() const {
  JsonObject json;
  json.add("reference_loss", reference_loss).add("loss", loss).add("kl", divergence);
  json.add("agreement", agreement).add("tokens", tokens);
  return json;
}

void require_room_to_score(const ScoredModel& model, const SessionUse& use) {
  require_fit(model.recipe, model.files, with_data(use, copied_bytes(model, use)),
              Session::rehearse(model.recipe, model.files, use));
}

void require_room_for_both(const ScoredModel& reference, const ScoredModel& other,
                           const SessionUse& use) {
  SessionPlan both = Session::rehearse(reference.recipe, reference.files, use);
  const SessionPlan second = Session::rehearse(other.recipe, other.files, use);
  const auto add = [](Ledger& to, const Ledger& more) {
    to.peak = checked_add(to.peak, more.peak);
    for (size_t p = 0; p < kPurposes; ++p) to.at_peak[p] += more.at_peak[p];
  };
  add(both.ledger, second.ledger);
  add(both.host, second.host);
  const int64_t copied = checked_add(copied_bytes(reference, use), copied_bytes(other, use));
  require_fit(reference.recipe, reference.files, with_data(use, copied), both);
}

void require_finite_loss(double loss, const std::string& model) {
  if (std::isfinite(loss)) return;
  throw Error(ErrorKind::non_finite, fmt::format("the loss of {} is not finite", model),
              kNonFiniteModel);
}

SessionUse comparison_use(const Dataset& dataset, int64_t sequence_len) {
  return {.training = false,
          .tokens = std::min(kChunk, sequence_len),
          .max_positions = sequence_len,
          .kv_tokens = sequence_len,
          .logits_rows = std::min(kChunk, sequence_len),
          .compares = true,
          .data_bytes = EvaluationBatches(dataset, kOneExample).step_bytes()};
}

std::unique_ptr<Session> open_scored(const ScoredModel& model, const SessionUse& use,
                                     const ProgressStyle& style) {
  return load_session(model.recipe, model.files, use,
                      Session::rehearse(model.recipe, model.files, use), style);
}

Comparison compare_sessions(const ComparedSession& first, const ComparedSession& second,
                            const Dataset& dataset, int threads, const ProgressStyle& style) {
  Session& reference = first.session;
  Session& other = second.session;
  ProgressBar bar(std::cerr, style, "comparing", dataset.stats().tokens, "tokens");
  EvaluationBatches batches(dataset, kOneExample);
  ChunkLogits p, q;
  Terms sums;
  Comparison out;
  while (true) {
    const StepBatch step = batches.next();  // the one before is gone
    if (step.micro_batches.empty()) break;
    for (const MicroBatch& batch : step.micro_batches) {
      reference.keep_cached(0);
      other.keep_cached(0);
      for (int64_t begin = 0; begin < batch.tokens(); begin += reference.tokens_at_once()) {
        const int64_t count = std::min(reference.tokens_at_once(), batch.tokens() - begin);
        const auto ids =
            std::span(batch.ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
        p.read(reference, ids);
        q.read(other, ids);
        // Behind the tokens one may have more padding than the other.
        const auto common = static_cast<size_t>(std::min(p.cols(), q.cols()));
        std::vector<Terms> terms(static_cast<size_t>(count));
        parallel_for(threads, count, [&](int64_t row, int) {
          const int32_t target = batch.targets[static_cast<size_t>(begin + row)];
          if (target < 0) return;
          terms[static_cast<size_t>(row)] = compare_row(
              p.row(row).first(common), q.row(row).first(common), static_cast<size_t>(target));
        });
        for (const Terms& term : terms) {  // in order, so that no sum depends on the threads
          sums.reference_loss += term.reference_loss;
          sums.loss += term.loss;
          sums.divergence += term.divergence;
          sums.agreement += term.agreement;
        }
        bar.advance(count);
      }
      out.tokens += batch.target_count;
    }
  }
  bar.finish();
  const auto tokens = static_cast<double>(std::max<int64_t>(1, out.tokens));
  out.reference_loss = sums.reference_loss / tokens;
  out.loss = sums.loss / tokens;
  out.divergence = sums.divergence / tokens;
  out.agreement = sums.agreement / tokens;
  out.reference_rate = p.rate();
  out.rate = q.rate();
  require_finite_loss(out.reference_loss, first.name);
  return out;
}

}  // namespace jackscrew
