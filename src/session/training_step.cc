#include "session/training_step.h"

#include <bit>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/map_guard.h"
#include "parallel/schedule.h"

namespace jackscrew {

namespace {

constexpr size_t kLossSum = offsetof(StepScalars, loss_sum);
constexpr size_t kSquares = offsetof(StepScalars, squares);

std::vector<int64_t> gradient_sizes_of(const Stage& stage) {
  std::vector<int64_t> sizes;
  stage.visit([&](const StateRef& state) {
    // A weight that waits as a master will have a gradient of that size.
    const bool has = state.role == StateRole::gradient || state.role == StateRole::master;
    if (has) sizes.push_back(state.view.size());
  });
  return sizes;
}

}  // namespace

TrainingStep::TrainingStep(StagePasses& passes, Learner& learner, const Settings& settings)
    : passes_(passes),
      device_(passes.device()),
      place_(passes.place()),
      stage_(passes.stage()),
      peers_(passes.peers()),
      learner_(learner),
      settings_(settings),
      tied_ends_(place_, stage_, learner),
      gradient_sizes_(gradient_sizes_of(stage_)),
      norm_(device_.memory(), gradient_sizes_) {
  watch_gradients();
  tied_ends_.require_one_update();
  const bool exchanges = place_.layout.replicas > 1 || tied_ends_.learn();
  peers_.reserve(
      device_.hardware().shares_host_memory() ? device_.memory() : device_.host(),
      exchanges ? std::accumulate(gradient_sizes_.begin(), gradient_sizes_.end(), int64_t{0}) : 0);
}

void TrainingStep::watch_gradients() {
  std::vector<Tensor> gradients;
  std::vector<StateRef> accumulated;
  const std::set<std::string> elsewhere = tied_ends_.measured_elsewhere();
  stage_.visit([&](const StateRef& state) {
    const bool gradient = state.role == StateRole::gradient && !learner_.updates_in_backward();
    if (gradient && !elsewhere.contains(state.name)) gradients.push_back(state.view);
    if (gradient || state.role == StateRole::window) accumulated.push_back(state);
  });
  norm_.watch(std::move(gradients));
  lane_sums_.watch(std::move(accumulated));
  device_.ops().forget_repeats();
}

bool TrainingStep::begin(Context& run, int64_t step) {
  run.scratch.reset();
  const bool states_changed = learner_.begin_step(run, step);
  if (states_changed) watch_gradients();
  return states_changed;
}

bool TrainingStep::pass(int64_t step) {
  Context run = device_.context(true);
  const bool states_changed = begin(run, step);
  learner_.overlap_with_step(run);
  learner_.take_events();
  return states_changed;
}

int64_t TrainingStep::block_passes(const StepBatch& batch) const {
  const auto count = std::ssize(batch.micro_batches);
  const int64_t micro_batches =
      place_.lane_begin(place_.end_lane(), count) - place_.lane_begin(place_.first_lane(), count);
  return 2 * micro_batches * (stage_.spec().last_block - stage_.spec().first_block);
}

void TrainingStep::accumulate(const StepBatch& batch, double learning_rate, int64_t step,
                              const ProgressCallback& progress) {
  const double waited_before = peers_.seconds_waited();
  ban_.reset();
  if (settings_.shared_gradients.high_water() > 0 && batch.micro_batches.size() > 1) {
    fail(ErrorKind::generic, "a step of {} micro-batches where weights share one gradient",
         batch.micro_batches.size());
  }
  StepScalars scalars{};
  scalars.learning_rate = static_cast<float>(learning_rate);
  scalars.max_grad_norm = static_cast<float>(settings_.max_grad_norm);
  scalars.targets = static_cast<double>(batch.targets);
  scalars.inverse_targets = batch.targets > 0 ? static_cast<float>(1.0 / scalars.targets) : 0.0f;
  scalars.step = narrow<uint32_t>(step);
  scalars.seed = settings_.seed;
  device_.write_scalars(scalars, kStepBeginBytes);
  Context run = device_.context(true);
  begin(run, step);
  auto ban = std::make_unique<NoAllocation>(device_.memory());
  // A device that works beside this thread has only been told what to do.
  if (progress && device_.hardware().shares_host_memory()) run.block_passed = &progress;
  place_.is_whole() ? accumulate_whole(run, batch) : accumulate_parts(run, batch);
  ban_ = std::move(ban);
  seconds_waited_ += peers_.seconds_waited() - waited_before;
}

void TrainingStep::accumulate_whole(Context& run, const StepBatch& batch) {
  InFlight& flight = passes_.single();
  CountsBefore before{batch.first_token, 0};
  for (const MicroBatch& micro_batch : batch.micro_batches) {
    flight.batch = flight.buffers.upload(run.ops, micro_batch, before);
    run.completes_gradients = &micro_batch == &batch.micro_batches.back();
    // The key has everything that determines what is issued and where its tensors lie.
    run.ops.repeat({kMicroBatchWork, flight.batch.tokens(), flight.batch.sequences(),
                    flight.batch.targets.size(), run.completes_gradients ? 1 : 0},
                   [&] { passes_.forward_and_backward(run); });
    before.tokens += micro_batch.tokens();
    before.targets += micro_batch.target_count;
  }
}

void TrainingStep::accumulate_parts(Context& run, const StepBatch& batch) {
  const auto count = std::ssize(batch.micro_batches);
  const int64_t first = place_.lane_begin(place_.first_lane(), count);
  const int64_t end = place_.lane_begin(place_.end_lane(), count);
  std::vector<CountsBefore> before = {{batch.first_token, 0}};  // [micro-batches + 1]
  for (const MicroBatch& micro_batch : batch.micro_batches) {
    const CountsBefore& last = before.back();
    before.push_back({last.tokens + micro_batch.tokens(), last.targets + micro_batch.target_count});
  }
  lane_losses_.clear();
  lane_sums_.begin_step(run.ops);
  int64_t lane = place_.first_lane();
  // In a short step some lanes are empty: they add zeros.
  const auto end_lanes = [&](int64_t done) {
    while (lane < place_.end_lane() && place_.lane_begin(lane + 1, count) == done) {
      ++lane;
      end_lane(lane == place_.end_lane());
    }
  };
  end_lanes(first);
  for (const Turn& turn :
       one_forward_one_backward(place_.stage(), place_.layout.stages, end - first)) {
    const int64_t index = first + turn.micro_batch;
    const auto at = static_cast<size_t>(index);
    if (turn.work == Work::forward) {
      passes_.forward(run, batch.micro_batches[at], before[at], turn.slot);
    } else {
      run.completes_gradients = index + 1 == end;
      passes_.backward(run, turn.slot);
      end_lanes(index + 1);
    }
  }
  passes_.wait_for_sends();
  sum_lanes();
}

void TrainingStep::end_lane(bool last) {
  lane_sums_.end_lane(device_.ops(), last);
  if (!place_.is_last()) return;
  lane_losses_.push_back(device_.read_sum(kLossSum));
  device_.write_sum(kLossSum, 0.0);
}

void TrainingStep::sum_lanes() {
  const std::vector<double> losses = peers_.losses_of_lanes(lane_losses_);
  device_.write_sum(kLossSum, std::accumulate(losses.begin(), losses.end(), 0.0));
  peers_.sum_over_replicas(device_.ops(), lane_sums_.tensors());
  if (const auto tied = tied_ends_.gradients(); !tied.empty()) {
    peers_.sum_over_ends(device_.ops(), tied);
  }
  lane_sums_.end_step(device_.ops());
}

void TrainingStep::apply(const WeightDecay& weight_decay) {
  const double waited_before = peers_.seconds_waited();
  const auto ban = std::move(ban_);
  Context run = device_.context(true);
  if (place_.is_whole()) {
    const auto work = [&] {
      run.scratch.reset();
      norm_.compute(run);
      stage_.apply(run, weight_decay);
    };
    run.ops.repeat({kUpdateWork, std::bit_cast<int64_t>(weight_decay.matrices),
                    std::bit_cast<int64_t>(weight_decay.vectors)},
                   work);
  } else {
    apply_parts(run, weight_decay);
  }
  learner_.overlap_with_step(run);
  seconds_waited_ += peers_.seconds_waited() - waited_before;
}

void TrainingStep::apply_parts(Context& run, const WeightDecay& weight_decay) {
  run.scratch.reset();
  norm_.measure(run);
  // Of gradients that a fused update has consumed.
  const double updated = device_.read_sum(kSquares);
  device_.write_sum(kSquares, peers_.sum_over_stages([&](double before) {
    device_.write_sum(kSquares, before + updated);
    norm_.add(run);
    return device_.read_sum(kSquares);
  }));
  norm_.finish(run);
  stage_.apply(run, weight_decay);
}

StepResult TrainingStep::result() {
  check_maps();
  const StepScalars scalars = device_.read_scalars();
  const bool finite = scalars.finite != 0;
  if (!finite && !device_.ops().plans_only()) {
    device_.write_scalars(StepScalars{}, sizeof(StepScalars));
  }
  return {scalars.last_step, scalars.loss, static_cast<double>(scalars.grad_norm), finite};
}

}  // namespace jackscrew
