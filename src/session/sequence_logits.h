// Logits of the last tokens of one sequence, with the cache of keys and values behind them. The
// stage may be one of several.
#pragma once

#include <algorithm>
#include <span>

#include "session/session_use.h"
#include "session/stage_passes.h"

namespace jackscrew {

class SequenceLogits {
 public:
  // Takes memory for use.logits_rows rows of logits, and for the cache if use.kv_tokens is not 0;
  // in a training session the cache lies in the stash. `virtual_tokens` come before every sequence.
  // `passes` must outlive this.
  SequenceLogits(StagePasses& passes, const SessionUse& use, int64_t virtual_tokens);

  // See Session: logits(), keep_cached() and cached_tokens().
  Tensor compute(std::span<const int32_t> ids, int64_t rows, bool use_cache);
  void keep_cached(int64_t tokens);
  int64_t cached_tokens() const { return std::max<int64_t>(0, cache_.length - virtual_tokens_); }
  // For a rehearsal: makes the cache as long as it can be before one more token.
  void fill_cache() { cache_.length = kv_tokens_ - 1; }
  int64_t kv_tokens() const { return kv_tokens_; }
  // The most bytes that a cache of its own has taken.
  int64_t cache_bytes() const { return cache_arena_.high_water(); }

 private:
  StagePasses& passes_;
  int64_t virtual_tokens_;
  int64_t kv_tokens_;
  bool cache_in_stash_;
  KvCache cache_;
  Arena cache_arena_;          // of the cache where it has memory of its own
  OwnedTensor logits_;         // f32 [logits_rows, vocab]
  OwnedTensor staged_logits_;  // the same on the host, see InFlight
};

}  // namespace jackscrew
