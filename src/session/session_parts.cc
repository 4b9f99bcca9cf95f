// The step of a session that is cut into lanes or holds one stage of a model: it adds the same sums
// in the same order as one rank that does everything.
#include <cstddef>

#include "parallel/schedule.h"
#include "session/session.h"

namespace jackscrew {

namespace {

constexpr size_t kLossSum = offsetof(StepScalars, loss_sum);
constexpr size_t kSquares = offsetof(StepScalars, squares);

Tensor sum_at(const Tensor& scalars, size_t offset) {
  const auto begin = static_cast<int64_t>(offset);
  return scalars.columns(begin, begin + int64_t{sizeof(double)});
}

}  // namespace

void Session::accumulate_parts(Context& run, const StepBatch& batch) {
  const Place& place = use_.place;
  const auto count = std::ssize(batch.micro_batches);
  const int64_t first = place.lane_begin(place.first_lane(), count);
  const int64_t end = place.lane_begin(place.end_lane(), count);
  std::vector<CountsBefore> before = {{batch.first_token, 0}};  // [micro-batches + 1]
  for (const MicroBatch& micro_batch : batch.micro_batches) {
    const CountsBefore& last = before.back();
    before.push_back({last.tokens + micro_batch.tokens(), last.targets + micro_batch.target_count});
  }
  lane_losses_.clear();
  lane_sums_.begin_step(*ops_);
  int64_t lane = place.first_lane();
  // In a short step some lanes are empty: they add zeros.
  const auto end_lanes = [&](int64_t done) {
    while (lane < place.end_lane() && place.lane_begin(lane + 1, count) == done) {
      ++lane;
      end_lane(lane == place.end_lane());
    }
  };
  end_lanes(first);
  for (const Turn& turn :
       one_forward_one_backward(place.stage(), place.layout.stages, end - first)) {
    const int64_t index = first + turn.micro_batch;
    const auto at = static_cast<size_t>(index);
    InFlight& flight = flights_[static_cast<size_t>(turn.slot)];
    if (turn.work == Work::forward) {
      pass_forward(run, batch.micro_batches[at], before[at], flight);
    } else {
      run.completes_gradients = index + 1 == end;
      pass_backward(run, flight);
      end_lanes(index + 1);
    }
  }
  for (InFlight& flight : flights_) {
    peers_->wait(flight.stream_sent);
    peers_->wait(flight.gradient_sent);
  }
  sum_lanes();
}

// Every stage runs forward here; in the last one the backward pass follows at once.
void Session::pass_forward(Context& run, const MicroBatch& micro_batch, const CountsBefore& before,
                           InFlight& flight) {
  peers_->wait(flight.stream_sent);
  peers_->wait(flight.gradient_sent);
  flight.batch = flight.buffers.upload(*ops_, micro_batch, before);
  flight.stash = flight.buffers.begin(true, recompute_);
  const int64_t hidden = stage_->config().hidden_size;
  const auto take = [&] {
    return flight.stash.arena->tensor(DType::f32, {flight.batch.tokens(), hidden});
  };
  const bool is_first = use_.place.is_first();
  const bool is_last = use_.place.is_last();
  if (!is_first || !is_last) flight.gradient = take();
  const Tensor input = is_first ? Tensor() : take();
  if (!is_first) peers_->receive_forward(*ops_, input, flight.staged.view());
  scratch_.reset();
  flight.stream = stage_->forward(run, flight.batch, is_first ? nullptr : &input, flight.stash);
  if (!is_last) {
    flight.stream_sent = peers_->send_forward(*ops_, flight.stream, flight.staged.view());
  }
}

void Session::pass_backward(Context& run, InFlight& flight) {
  const Place& place = use_.place;
  if (!place.is_last()) {
    peers_->wait(flight.stream_sent);
    peers_->receive_backward(*ops_, flight.gradient, flight.staged.view());
  }
  scratch_.reset();
  Tensor d = flight.gradient;
  if (place.is_last()) {
    const Tensor& stream = flight.stream;
    if (place.is_first()) d = scratch_.tensor(DType::f32, {stream.rows(), stream.cols()});
    stage_->loss(run, flight.batch, stream, &d);
  }
  stage_->backward(run, flight.batch, d, flight.stash);
  if (!place.is_first()) {
    flight.gradient_sent = peers_->send_backward(*ops_, d, flight.staged.view());
  }
}

void Session::end_lane(bool last) {
  lane_sums_.end_lane(*ops_, last);
  if (!use_.place.is_last()) return;
  lane_losses_.push_back(read_sum(kLossSum));
  write_sum(kLossSum, 0.0);
}

void Session::sum_lanes() {
  const std::vector<double> losses = peers_->losses_of_lanes(lane_losses_);
  double sum = 0.0;
  for (const double loss : losses) sum += loss;
  write_sum(kLossSum, sum);
  const std::vector<Tensor> tensors = lane_sums_.tensors();
  peers_->sum_over_replicas(*ops_, tensors);
  if (const auto tied = tied_gradients(); !tied.empty()) peers_->sum_over_ends(*ops_, tied);
  lane_sums_.end_step(*ops_);
}

void Session::apply_parts(const WeightDecay& weight_decay) {
  Context run = context(true);
  scratch_.reset();
  norm_->measure(run);
  const double updated = read_sum(kSquares);  // of gradients that a fused update has consumed
  write_sum(kSquares, peers_->sum_over_stages([&](double before) {
    write_sum(kSquares, before + updated);
    norm_->add(run);
    return read_sum(kSquares);
  }));
  norm_->finish(run);
  stage_->apply(run, weight_decay);
}

// Visits the states of a tied embedding that learns, which both ends of a pipeline hold and update
// alike. What is learned beside a frozen one is on the first stage alone.
void Session::visit_tied(const StateVisitor& visitor) const {
  const Place& place = use_.place;
  const bool at_an_end = place.layout.stages > 1 && (place.is_first() || place.is_last());
  if (!at_an_end || !stage_->config().tie_word_embeddings) return;
  for (const auto& parameter : stage_->parameters()) {
    const WeightSpec& spec = parameter->weight->spec();
    const bool learns = spec.kind == WeightKind::embedding && learner_->changes(spec);
    if (learns) parameter->slot->visit(visitor);
  }
}

// The gradient of a tied embedding, of which both ends have the sum, counts on the first stage
// only. The last stage holds an embedding only where it is tied.
bool Session::is_measured_elsewhere(const WeightSpec& weight) const {
  const Place& place = use_.place;
  return !place.is_first() && place.is_last() && weight.kind == WeightKind::embedding;
}

// The names of the states of such weights.
std::set<std::string> Session::measured_elsewhere() const {
  std::set<std::string> names;
  for (const auto& parameter : stage_->parameters()) {
    if (!is_measured_elsewhere(parameter->weight->spec())) continue;
    parameter->slot->visit([&](const StateRef& state) { names.insert(state.name); });
  }
  return names;
}

std::vector<Tensor> Session::tied_gradients() const {
  std::vector<Tensor> gradients;
  visit_tied([&](const StateRef& state) {
    if (state.role == StateRole::gradient) gradients.push_back(state.view);
  });
  return gradients;
}

// Whether it has gradients that both ends add, now or when it no longer waits as a master.
bool Session::updates_tied() const {
  bool any = false;
  visit_tied([&](const StateRef& state) {
    any = any || state.role == StateRole::gradient || state.role == StateRole::master;
  });
  return any;
}

// Updated within backward, it would be two weights: each end has a part of its gradient only.
void Session::require_one_update_of_tied() const {
  if (!learner_->updates_in_backward() || !updates_tied()) return;
  throw Error(ErrorKind::usage,
              "with update=fused each end of a pipeline would update the embedding, which is the "
              "head as well, by its own part of the gradient",
              "set update=after (max_grad_norm_of=model), or train on one stage");
}

double Session::read_sum(size_t offset) {
  double sum = 0.0;
  ops_->copy(Tensor(&sum, DType::u8, {sizeof sum}), sum_at(scalars_.view(), offset));
  return sum;
}

void Session::write_sum(size_t offset, double sum) {
  ops_->copy(sum_at(scalars_.view(), offset), Tensor(&sum, DType::u8, {sizeof sum}));
}

}  // namespace jackscrew
