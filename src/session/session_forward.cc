// What a session computes without learning: losses, and logits for generation with the cache of
// keys and values behind them. Its stage may be one of several.
#include <algorithm>
#include <cstddef>
#include <numeric>

#include "base/map_guard.h"
#include "session/session.h"

namespace jackscrew {

namespace {

// A shorter cache than this would leave many a short text of a small model without an answer.
constexpr int64_t kShortestCache = 128;  // tokens

Tensor view_of(std::vector<int32_t>& values) {
  return {values.data(), DType::i32, {static_cast<int64_t>(values.size())}};
}

// The tokens of a cache that takes what a step has as activations at least.
int64_t tokens_for_activations(const SessionUse& use, const ModelConfig& config) {
  // Numbers of f32 for each token. Backward needs the input of every block at least, where blocks
  // are recomputed. A cache has two rows for every block at most, beside the streams of a forward
  // pass.
  const int64_t layers = config.num_hidden_layers;
  const int64_t activations = (layers + 1) * config.hidden_size;
  const int64_t kv = config.num_key_value_heads * config.head_dim;
  const int64_t cached = 2 * layers * kv + 2 * config.hidden_size;
  return checked_mul(use.tokens, activations) / cached;
}

}  // namespace

int64_t answer_tokens(const SessionUse& use, const ModelConfig& config, int64_t virtual_tokens) {
  return std::min(use.max_positions - virtual_tokens,
                  std::max(tokens_for_activations(use, config) - virtual_tokens, kShortestCache));
}

bool answers_take_memory(const SessionUse& use, const ModelConfig& config, int64_t virtual_tokens) {
  return virtual_tokens + answer_tokens(use, config, virtual_tokens) >
         tokens_for_activations(use, config);
}

Tensor Session::pass_through(Context& run, InFlight& flight, KvCache* cache) {
  peers_->wait(flight.stream_sent);
  flight.stash = flight.buffers.begin(false, false);
  if (cache != nullptr && use_.training) {
    // At the beginning of the stash, where it was for the tokens before.
    stage_->place_cache(*cache, *flight.stash.arena, use_.kv_tokens);
  }
  const bool is_first = use_.place.is_first();
  Tensor input;
  if (!is_first) {
    input = flight.stash.arena->tensor(DType::f32,
                                       {flight.batch.tokens(), stage_->config().hidden_size});
    peers_->receive_forward(*ops_, input, flight.staged.view());
  }
  scratch_.reset();
  const Tensor stream =
      stage_->forward(run, flight.batch, is_first ? nullptr : &input, flight.stash, cache);
  if (!use_.place.is_last()) {
    flight.stream_sent = peers_->send_forward(*ops_, stream, flight.staged.view());
  }
  return stream;
}

std::vector<double> Session::losses(const StepBatch& batch, const ProgressCallback& progress) {
  std::vector<double> losses;
  Context run = context(false);
  const int replicas = use_.place.layout.replicas;
  for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
    if (static_cast<int>(i) % replicas != use_.place.replica()) continue;
    write_scalars(StepScalars{}, kStepBeginBytes);
    InFlight& flight = flights_[i % flights_.size()];
    peers_->wait(flight.stream_sent);
    flight.batch = flight.buffers.upload(*ops_, batch.micro_batches[i]);
    const Tensor stream = pass_through(run, flight, nullptr);
    if (use_.place.is_last()) {
      stage_->loss(run, flight.batch, stream, nullptr);
      losses.push_back(read_sum(offsetof(StepScalars, loss_sum)));
    }
    if (progress) progress(batch.micro_batches[i].tokens());
  }
  for (InFlight& flight : flights_) peers_->wait(flight.stream_sent);
  check_maps();
  return losses;
}

double Session::loss_sum(const StepBatch& batch, const ProgressCallback& progress) {
  const std::vector<double> each = losses(batch, progress);
  return std::accumulate(each.begin(), each.end(), 0.0);
}

void Session::keep_cached(int64_t tokens) {
  if (tokens > cached_tokens()) {
    fail(ErrorKind::generic, "{} tokens wanted of a cache of {}", tokens, cached_tokens());
  }
  cache_.length = tokens > 0 ? tokens + virtual_tokens() : 0;
}

Tensor Session::logits(std::span<const int32_t> ids, int64_t rows, bool use_cache) {
  Tensor out;
  const auto compute = [&] { out = compute_logits(ids, rows, use_cache); };
  if (logits_listener_) {
    logits_listener_(ids, rows, use_cache, compute);
  } else {
    compute();
  }
  return out;
}

Tensor Session::compute_logits(std::span<const int32_t> ids, int64_t rows, bool use_cache) {
  const int64_t before = use_cache ? cache_.length : 0;
  MicroBatch batch;
  if (before == 0) batch.ids.assign(static_cast<size_t>(virtual_tokens()), 0);
  batch.ids.insert(batch.ids.end(), ids.begin(), ids.end());
  const int64_t tokens = batch.tokens();
  if (use_cache && before + tokens > use_.kv_tokens) {
    fail(ErrorKind::generic, "{} tokens in a cache for {}", before + tokens, use_.kv_tokens);
  }
  for (int64_t t = 0; t < tokens; ++t) batch.positions.push_back(narrow<int32_t>(before + t));
  batch.cu_seqlens = {0, narrow<int32_t>(tokens)};
  scratch_.reset();
  Context run = context(false);
  InFlight& flight = flights_.front();
  flight.batch = flight.buffers.upload(*ops_, batch);
  if (use_cache) {
    std::vector<int32_t> keys = {0, narrow<int32_t>(before + tokens)};
    ops_->copy(cache_.cu_seqlens_k.view(), view_of(keys));
  }
  const Tensor out = logits_.view().rows(0, rows);
  const auto work = [&] {
    const Tensor hidden = pass_through(run, flight, use_cache ? &cache_ : nullptr);
    if (use_.place.is_last()) stage_->logits(run, hidden.rows(tokens - rows, tokens), out);
  };
  if (use_cache && tokens == 1 && use_.place.is_whole()) {
    // What differs from the token before has just been copied to the device.
    ops_->repeat({kToken, rows}, work);
  } else {
    work();
  }
  if (use_cache) cache_.length += tokens;
  peers_->return_to_first(*ops_, out, staged_logits_.view());
  check_maps();
  return out;
}

}  // namespace jackscrew
