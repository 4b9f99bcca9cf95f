// Held-out loss.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <span>

#include "base/json_object.h"
#include "data/dataset.h"
#include "report/progress.h"
#include "session/session.h"

namespace jackscrew {

struct EvalResult {
  double loss = 0;             // mean negative log-likelihood of the target tokens, nats
  double perplexity = 0;       // e^loss
  double bits_per_byte = NAN;  // NaN when the targets stand for no bytes
  int64_t tokens = 0;          // targets
  int64_t bytes = 0;           // of text that the targets stand for
  int64_t records = 0;         // that were scored

  // Merges both, weighted by their tokens.
  EvalResult& operator+=(const EvalResult& other);
  JsonObject to_json() const;
};

// How a session must be planned to score these data sets by itself. Several records are scored
// together: 2048 tokens keep the products busy, and more would only take memory. Where so many do
// not fit, fewer, down to one text of sequence_len.
SessionUse evaluation_use(const Recipe& recipe, const ModelFiles& files,
                          std::span<const Dataset> data);

// Session::loss_sum(), or what stands for it.
using ScoreBatch = std::function<double(const StepBatch& batch, const ProgressCallback& progress)>;
// Scores every example on its own, in micro-batches of at most `max_tokens` tokens, with a progress
// bar on stderr if that takes long.
EvalResult evaluate(const ScoreBatch& score, const Dataset& dataset, int64_t max_tokens,
                    int64_t virtual_tokens, const ProgressStyle& style);
EvalResult evaluate(Session& session, const Dataset& dataset, int64_t max_tokens,
                    const ProgressStyle& style);

}  // namespace jackscrew
