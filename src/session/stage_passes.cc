#include "session/stage_passes.h"

#include <cstddef>
#include <utility>

#include "base/map_guard.h"

namespace jackscrew {

StagePasses::StagePasses(SessionDevice& device, const Place& place, const Stage& stage,
                         Peers& peers, std::vector<InFlight> flights, bool recompute)
    : device_(device),
      place_(place),
      stage_(stage),
      peers_(peers),
      flights_(std::move(flights)),
      recompute_(recompute) {}

void StagePasses::forward_and_backward(Context& run) {
  InFlight& flight = single();
  run.scratch.reset();
  flight.stash = flight.buffers.begin(true, recompute_);
  const Tensor hidden = stage_.forward(run, flight.batch, nullptr, flight.stash);
  const Tensor d = run.scratch.tensor(DType::f32, {hidden.rows(), hidden.cols()});
  stage_.loss(run, flight.batch, hidden, &d);
  stage_.backward(run, flight.batch, d, flight.stash);
}

void StagePasses::forward(Context& run, const MicroBatch& micro_batch, const CountsBefore& before,
                          int64_t slot) {
  InFlight& flight = flights_[static_cast<size_t>(slot)];
  peers_.wait(flight.stream_sent);
  peers_.wait(flight.gradient_sent);
  flight.batch = flight.buffers.upload(run.ops, micro_batch, before);
  flight.stash = flight.buffers.begin(true, recompute_);
  const auto take = [&] {
    return flight.stash.arena->tensor(DType::f32,
                                      {flight.batch.tokens(), stage_.config().hidden_size});
  };
  const bool is_first = place_.is_first();
  const bool is_last = place_.is_last();
  if (!is_first || !is_last) flight.gradient = take();
  const Tensor input = is_first ? Tensor() : take();
  if (!is_first) peers_.receive_forward(run.ops, input, flight.staged.view());
  run.scratch.reset();
  flight.stream = stage_.forward(run, flight.batch, is_first ? nullptr : &input, flight.stash);
  if (!is_last) {
    flight.stream_sent = peers_.send_forward(run.ops, flight.stream, flight.staged.view());
  }
}

void StagePasses::backward(Context& run, int64_t slot) {
  InFlight& flight = flights_[static_cast<size_t>(slot)];
  if (!place_.is_last()) {
    peers_.wait(flight.stream_sent);
    peers_.receive_backward(run.ops, flight.gradient, flight.staged.view());
  }
  run.scratch.reset();
  Tensor d = flight.gradient;
  if (place_.is_last()) {
    const Tensor& stream = flight.stream;
    if (place_.is_first()) d = run.scratch.tensor(DType::f32, {stream.rows(), stream.cols()});
    stage_.loss(run, flight.batch, stream, &d);
  }
  stage_.backward(run, flight.batch, d, flight.stash);
  if (!place_.is_first()) {
    flight.gradient_sent = peers_.send_backward(run.ops, d, flight.staged.view());
  }
}

void StagePasses::wait_for_sends() {
  for (InFlight& flight : flights_) {
    peers_.wait(flight.stream_sent);
    peers_.wait(flight.gradient_sent);
  }
}

Tensor StagePasses::through(Context& run, InFlight& flight, KvCache* cache, int64_t cached_tokens) {
  peers_.wait(flight.stream_sent);
  flight.stash = flight.buffers.begin(false, false);
  // Where it was for the tokens before.
  if (cached_tokens > 0) stage_.place_cache(*cache, *flight.stash.arena, cached_tokens);
  const bool is_first = place_.is_first();
  Tensor input;
  if (!is_first) {
    input = flight.stash.arena->tensor(DType::f32,
                                       {flight.batch.tokens(), stage_.config().hidden_size});
    peers_.receive_forward(run.ops, input, flight.staged.view());
  }
  run.scratch.reset();
  const Tensor stream =
      stage_.forward(run, flight.batch, is_first ? nullptr : &input, flight.stash, cache);
  if (!place_.is_last()) {
    flight.stream_sent = peers_.send_forward(run.ops, stream, flight.staged.view());
  }
  return stream;
}

std::vector<double> StagePasses::losses(const StepBatch& batch, const ProgressCallback& progress) {
  std::vector<double> losses;
  Context run = device_.context(false);
  const int replicas = place_.layout.replicas;
  for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
    if (static_cast<int>(i) % replicas != place_.replica()) continue;
    device_.write_scalars(StepScalars{}, kStepBeginBytes);
    InFlight& flight = flights_[i % flights_.size()];
    peers_.wait(flight.stream_sent);
    flight.batch = flight.buffers.upload(run.ops, batch.micro_batches[i]);
    const Tensor stream = through(run, flight);
    if (place_.is_last()) {
      stage_.loss(run, flight.batch, stream, nullptr);
      losses.push_back(device_.read_sum(offsetof(StepScalars, loss_sum)));
    }
    if (progress) progress(batch.micro_batches[i].tokens());
  }
  wait_for_sends();
  check_maps();
  return losses;
}

}  // namespace jackscrew
