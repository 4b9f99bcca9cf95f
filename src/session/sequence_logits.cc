#include "session/sequence_logits.h"

#include "base/map_guard.h"

namespace jackscrew {

namespace {

Tensor view_of(std::vector<int32_t>& values) {
  return {values.data(), DType::i32, {static_cast<int64_t>(values.size())}};
}

}  // namespace

SequenceLogits::SequenceLogits(StagePasses& passes, const SessionUse& use, int64_t virtual_tokens)
    : passes_(passes),
      virtual_tokens_(virtual_tokens),
      kv_tokens_(use.kv_tokens),
      cache_in_stash_(use.training) {
  SessionDevice& device = passes.device();
  if (kv_tokens_ > 0) {
    cache_.cu_seqlens_k = OwnedTensor(device.memory(), Purpose::io, DType::i32, {2});
    if (!cache_in_stash_) {
      cache_arena_ = device.make_arena(Purpose::kv_cache, &ArenaSizes::kv_cache);
      passes.stage().place_cache(cache_, cache_arena_, kv_tokens_);
    }
  }
  const int64_t vocab_size = passes.stage().config().vocab_size;
  logits_ =
      OwnedTensor(device.memory(), Purpose::workspace, DType::f32, {use.logits_rows, vocab_size});
  if (use.place.layout.stages > 1) {
    staged_logits_ = device.make_staged(use.logits_rows, vocab_size);
  }
}

void SequenceLogits::keep_cached(int64_t tokens) {
  if (tokens > cached_tokens()) {
    fail(ErrorKind::generic, "{} tokens wanted of a cache of {}", tokens, cached_tokens());
  }
  cache_.length = tokens > 0 ? tokens + virtual_tokens_ : 0;
}

Tensor SequenceLogits::compute(std::span<const int32_t> ids, int64_t rows, bool use_cache) {
  const int64_t before = use_cache ? cache_.length : 0;
  MicroBatch batch;
  if (before == 0) batch.ids.assign(static_cast<size_t>(virtual_tokens_), 0);
  batch.ids.insert(batch.ids.end(), ids.begin(), ids.end());
  const int64_t tokens = batch.tokens();
  if (use_cache && before + tokens > kv_tokens_) {
    fail(ErrorKind::generic, "{} tokens in a cache for {}", before + tokens, kv_tokens_);
  }
  for (int64_t t = 0; t < tokens; ++t) batch.positions.push_back(narrow<int32_t>(before + t));
  batch.cu_seqlens = {0, narrow<int32_t>(tokens)};
  Context run = passes_.device().context(false);
  run.scratch.reset();
  InFlight& flight = passes_.single();
  flight.batch = flight.buffers.upload(run.ops, batch);
  if (use_cache) {
    std::vector<int32_t> keys = {0, narrow<int32_t>(before + tokens)};
    run.ops.copy(cache_.cu_seqlens_k.view(), view_of(keys));
  }
  const Tensor out = logits_.view().rows(0, rows);
  const Place& place = passes_.place();
  const auto work = [&] {
    const Tensor hidden = passes_.through(run, flight, use_cache ? &cache_ : nullptr,
                                          use_cache && cache_in_stash_ ? kv_tokens_ : 0);
    if (place.is_last()) passes_.stage().logits(run, hidden.rows(tokens - rows, tokens), out);
  };
  if (use_cache && tokens == 1 && place.is_whole()) {
    // What differs from the token before has just been copied to the device.
    run.ops.repeat({kTokenWork, rows}, work);
  } else {
    work();
  }
  if (use_cache) cache_.length += tokens;
  passes_.peers().return_to_first(run.ops, out, staged_logits_.view());
  check_maps();
  return out;
}

}  // namespace jackscrew
