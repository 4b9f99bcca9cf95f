#include "session/session.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/map_guard.h"
#include "base/text.h"
#include "formats/peft.h"
#include "learners/fused.h"
#include "learners/product_parameter_slot.h"
#include "optim/squares.h"
#include "parallel/schedule.h"
#include "session/adapter.h"
#include "session/stage_loader.h"
#include "tensor/file_backing.h"

namespace jackscrew {

namespace {

// Whether all values of a weight are finite, as it is stored.
bool is_finite(Context& context, const Weight& weight) {
  const Arena::Frame frame(context.scratch);
  const int64_t step = std::min(weight.rows(), panel_rows(weight.cols(), dtype_size(DType::f32)));
  const Tensor panel = context.scratch.tensor(DType::f32, {step, weight.cols()});
  for (int64_t begin = 0; begin < weight.rows(); begin += step) {
    const int64_t end = std::min(weight.rows(), begin + step);
    const Tensor rows = panel.rows(0, end - begin);
    weight.decode(context.ops, begin, end, rows);
    if (!all_finite(context, rows)) return false;
    if (context.ops.plans_only()) break;
  }
  return true;
}

ModelFiles open_original(const std::string& model) {
  ModelFiles files = open_model(model);
  if (files.source == nullptr) {
    throw Error(
        ErrorKind::usage,
        fmt::format("{} has no weights that could be another model's before rounding", model),
        "the directory or GGUF file of the model before it was quantised is needed");
  }
  return files;
}

// cuDNN's attention takes nothing else.
void require_bf16_for_cudnn(const Recipe& recipe, const Arithmetic& arithmetic, const Ops& ops,
                            const Device& device) {
  if (recipe.attention != AttentionLibrary::cudnn ||
      ActivationTypes::of(arithmetic, ops).attention == DType::bf16) {
    return;
  }
  throw Error(ErrorKind::usage,
              fmt::format("attention=cudnn takes tensors of bf16, which a run on {} with "
                          "product={}{} does not have",
                          device.name(), arithmetic.product().name(),
                          recipe.product_exclude.empty() ? "" : " and product_exclude"),
              "set device=cuda:0 product=bf16 without product_exclude, or leave attention=own");
}

// Whether frozen weights stay in the map of their file, as far as they can.
bool maps_weights(const Recipe& recipe, bool training, const Device& device) {
  const bool is_asked = recipe.weights == WeightPlace::mmap;
  if (is_asked && !device.shares_host_memory()) {
    throw Error(ErrorKind::usage,
                fmt::format("weights=mmap, but {} reads memory of its own", device.name()),
                "leave weights=auto, or set device=cpu");
  }
  const bool is_wanted = is_asked || (recipe.weights == WeightPlace::automatic && !training);
  return is_wanted && device.shares_host_memory();
}

}  // namespace

std::unique_ptr<Device> open_device(const Recipe& recipe) {
  return open_device(recipe.device, {.threads = recipe.threads,
                                     .isa = choose_isa(recipe.isa),
                                     .environments = recipe.python_environments,
                                     .attention = recipe.attention});
}

void require_learning(const std::string& learner, int64_t gradients) {
  if (gradients > 0) return;
  throw Error(ErrorKind::usage, fmt::format("nothing learns with learner={}", learner),
              "use learner=full or learner=lora");
}

fs::path masters_directory(const fs::path& output_dir, int rank) {
  return output_dir /
         (rank == 0 ? ".jackscrew-masters" : fmt::format(".jackscrew-masters-{}", rank));
}

Session::Session(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
                 const SessionPlan& plan, const SessionHooks& hooks)
    : Session(recipe, files, use, plan, Mode::run, hooks) {}

Session::Session(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
                 const SessionPlan& plan, Mode mode, const SessionHooks& hooks)
    : use_(use),
      sizes_(mode != Mode::measure ? std::optional(plan.arenas) : std::nullopt),
      recompute_(plan.recompute),
      seed_(recipe.seed),
      max_grad_norm_(recipe.max_grad_norm) {
  const bool plans_only = mode != Mode::run;
  const int64_t budget = recipe.device_memory.value_or(0);
  if (!plans_only && budget > 0 && plan.ledger.peak > budget) {
    fail(ErrorKind::does_not_fit, "this run needs {}, over device_memory of {}",
         human_bytes(plan.ledger.peak), human_bytes(budget));
  }
  device_ = hooks.device ? hooks.device : open_device(recipe);
  memory_ =
      std::make_unique<Memory>("device", plans_only ? make_plan_backing() : device_->make_backing(),
                               plans_only ? 0 : budget);
  ops_ = plans_only ? device_->make_plan_ops(*memory_) : device_->make_ops(*memory_);
  if (hooks.wrap) ops_ = hooks.wrap(std::move(ops_));
  memory_->set_phase("load");
  learner_ = make_learner(recipe, files.config.tie_word_embeddings);
  reserve_virtual_tokens();
  make_host_memory(recipe, plans_only);
  optimizer_ =
      make_optimizer(recipe.optimizer, {recipe.adam_beta1, recipe.adam_beta2, recipe.adam_epsilon});
  const StageSpec whole = StageSpec::whole(files.config);  // so that all ranks have one arithmetic
  arithmetic_.emplace(find_product(recipe.product).make(recipe.options, *ops_),
                      recipe.product_exclude, linears_of(files.config, whole));
  require_bf16_for_cudnn(recipe, *arithmetic_, *ops_, *device_);
  scratch_ = make_arena(Purpose::workspace, &ArenaSizes::scratch);
  const Layout& layout = use.place.layout;
  const int64_t micro_batches = layout.lanes_of_replica() * recipe.gradient_accumulation_steps;
  const int64_t in_flight =
      use.training ? flights_of(use.place.stage(), layout.stages, micro_batches) : 1;
  peers_ = std::make_unique<Peers>(hooks.transport, layout, use.place.rank);
  for (int64_t i = 0; i < in_flight; ++i) {
    flights_.push_back({MicroBatchBuffers(*memory_, use_.tokens,
                                          make_arena(Purpose::activations, &ArenaSizes::stash))});
    flights_.back().staged = make_staged(use_.tokens, files.config.hidden_size);
  }
  scalars_ = OwnedTensor(*memory_, Purpose::workspace, DType::u8, {sizeof(StepScalars)});
  write_scalars(StepScalars{}, sizeof(StepScalars));
  build_stage(recipe, files, make_arena(Purpose::staging, &ArenaSizes::staging), hooks.loaded);
  if (use.training) prepare_training(recipe.learner);
  prepare_logits(files.config);
  if (use.training) {
    // Last, for the learner's peak is beside everything else.
    Context run = context(false);
    learner_->reserve(run);
    if (master_files_ != nullptr) master_files_->reserve(FileBacking::Replaced::one_at_a_time);
  }
  memory_->set_phase(use.training ? "train" : "run");
}

void Session::prepare_training(const std::string& learner) {
  const Layout& layout = use_.place.layout;
  const std::vector<int64_t> gradients = gradient_sizes();
  if (layout.stages == 1) require_learning(learner, std::ssize(gradients));
  norm_.emplace(*memory_, gradients);
  watch_gradients();
  require_one_update_of_tied();
  const bool exchanges = layout.replicas > 1 || updates_tied();
  peers_->reserve(device_->shares_host_memory() ? *memory_ : *host_,
                  exchanges ? std::accumulate(gradients.begin(), gradients.end(), int64_t{0}) : 0);
}

void Session::prepare_logits(const ModelConfig& config) {
  if (use_.training && use_.logits_rows > 0) {
    use_.kv_tokens = virtual_tokens() + answer_tokens(use_, config, virtual_tokens());
  }
  if (use_.kv_tokens > 0) {
    cache_.cu_seqlens_k = OwnedTensor(*memory_, Purpose::io, DType::i32, {2});
    if (!use_.training) {
      cache_arena_ = make_arena(Purpose::kv_cache, &ArenaSizes::kv_cache);
      stage_->place_cache(cache_, cache_arena_, use_.kv_tokens);
    }
  }
  if (use_.logits_rows == 0) return;
  logits_ =
      OwnedTensor(*memory_, Purpose::workspace, DType::f32, {use_.logits_rows, config.vocab_size});
  staged_logits_ = make_staged(use_.logits_rows, config.vocab_size);
}

std::vector<int64_t> Session::gradient_sizes() {
  std::vector<int64_t> sizes;
  stage_->visit([&](const StateRef& state) {
    // A weight that waits as a master will have a gradient of that size.
    const bool has = state.role == StateRole::gradient || state.role == StateRole::master;
    if (has) sizes.push_back(state.view.size());
  });
  return sizes;
}

std::unique_ptr<Learner> Session::make_learner(const Recipe& recipe, bool tied) {
  const bool uses = use_.training || !recipe.adapter.empty();
  auto learner = find_learner(uses ? recipe.learner : "frozen")
                     .make(with_head_of_adapter(recipe, tied).options);
  if (!use_.training || !recipe.fused_update) return learner;
  FusedOptions options{recipe.weight_decay, recipe.max_grad_norm > 0};
  if (recipe.gradient_accumulation_steps == 1) {
    shared_gradients_ = make_arena(Purpose::gradients, &ArenaSizes::gradients);
    options.shared_gradients = &shared_gradients_;
  }
  return make_fused_learner(std::move(learner), options);
}

void Session::reserve_virtual_tokens() {
  if (use_.training || use_.logits_rows == 0) return;  // sequence_len includes virtual tokens
  const int64_t before = virtual_tokens();
  use_.tokens = checked_add(use_.tokens, before);
  use_.max_positions = checked_add(use_.max_positions, before);
  if (use_.kv_tokens > 0) use_.kv_tokens = checked_add(use_.kv_tokens, before);
}

void Session::make_host_memory(const Recipe& recipe, bool plans_only) {
  host_ = std::make_unique<Memory>("host", plans_only ? make_plan_backing() : make_host_backing(),
                                   plans_only ? 0 : recipe.host_memory.value_or(0));
  if (!learner_->masters_in_files()) return;
  const fs::path directory = masters_directory(recipe.output_dir, use_.place.rank);
  std::unique_ptr<Backing> backing;
  if (plans_only) {
    backing = make_plan_backing(directory);
  } else {
    auto files = std::make_unique<FileBacking>(directory);
    master_files_ = files.get();
    backing = std::move(files);
  }
  disk_ = std::make_unique<Memory>("disk", std::move(backing), 0);
}

OwnedTensor Session::make_staged(int64_t rows, int64_t cols) {
  if (use_.place.layout.stages == 1 || device_->shares_host_memory()) return {};
  return {*host_, Purpose::communication, DType::f32, {rows, cols}};
}

void Session::reserve_master_files() {
  if (master_files_ != nullptr) master_files_->reserve(FileBacking::Replaced::each);
}

Arena Session::make_arena(Purpose purpose, int64_t ArenaSizes::*size) {
  return sizes_ ? Arena(*memory_, purpose, (*sizes_).*size) : Arena::measuring();
}

void Session::build_stage(const Recipe& recipe, const ModelFiles& files, Arena staging,
                          const ProgressCallback& loaded) {
  const Layout& layout = use_.place.layout;
  std::optional<ModelFiles> original;
  if (use_.training && !learner_->original_model().empty()) {
    original = open_original(learner_->original_model());
  }
  StageLoader loader(recipe, files, original ? &*original : nullptr, *learner_, *ops_,
                     std::move(staging), loaded);
  if (sizes_) loader.check_tied();
  const int64_t lane_sums = waiting_lane_sums(layout.lanes_of_replica());
  const LearnerContext slots{
      .memory = *memory_,
      .masters = disk_ ? *disk_ : *host_,
      .scratch = scratch_,
      .scalars = static_cast<StepScalars*>(scalars_.view().raw()),
      .ops = *ops_,
      .optimizer = *optimizer_,
      .seed = seed_,
      .training = use_.training,
      .original = [&](const Weight& weight,
                      const Tensor& out) { loader.read_original(weight, out); },
      .lane_sums = lane_sums,
      .window_lane_sums = lane_sums + (layout.lanes > 1 ? 1 : 0),
      .sum_over_stages =
          [this](const std::function<double(double)>& add) { return peers_->sum_over_stages(add); },
      .is_measured_elsewhere =
          [this](const WeightSpec& weight) { return is_measured_elsewhere(weight); },
      .encode =
          [&](const std::string& text) {
            return make_tokenizer(recipe.tokenizer, files).encode(text, false);
          },
      .learning_rate = recipe.learning_rate};
  const StageSpec whole = StageSpec::whole(files.config);
  const std::vector<WeightSpec> learnable = learnable_of(files.config, whole, *arithmetic_);
  if (use_.training) {
    check_product_parameters(*learner_, product(), learnable);
    check_option_of_dw(*learner_, product(),
                       multiplied_by_product(files.config, whole, *arithmetic_), recipe.options);
  }
  try {
    learner_->plan(learnable);
  } catch (const Error&) {
    // Where the settings are an adapter's, what it says of the model itself goes first.
    if (!recipe.adapter.empty()) {
      const PeftAdapter adapter = read_peft_adapter(recipe.adapter);
      require_tying(adapter, files.config.tie_word_embeddings, recipe.adapter);
      require_places(adapter, learnable, recipe.adapter);
    }
    throw;
  }
  StageBuild build{slots,
                   *learner_,
                   *arithmetic_,
                   [&](const WeightSpec& weight) { return loader.format(weight); },
                   [&](Weight& weight) { loader.fill(weight); },
                   use_.max_positions,
                   use_.later_positions};
  if (maps_weights(recipe, use_.training, *device_)) {
    source_ = files.source;
    build.mapped = [&](const WeightSpec& weight, const Format& format) {
      return loader.mapped(weight, format);
    };
  }
  stage_ = std::make_unique<Stage>(files.config, use_.place.spec(files.config), build);
  loader.require_mapped();
  staging_high_water_ = loader.staging_bytes();
}

Context Session::context(bool training) {
  return {*ops_, scratch_, static_cast<StepScalars*>(scalars_.view().raw()), training};
}

void Session::write_scalars(const StepScalars& scalars, int64_t bytes) {
  StepScalars copy = scalars;
  ops_->copy(scalars_.view().columns(0, bytes), Tensor(&copy, DType::u8, {bytes}));
}

StepScalars Session::read_scalars() {
  StepScalars scalars{};
  ops_->copy(Tensor(&scalars, DType::u8, {sizeof(StepScalars)}), scalars_.view());
  return scalars;
}

void Session::visit(const StateVisitor& visitor) const {
  learner_->visit(visitor);
  stage_->visit(visitor);
  check_maps();
}

void Session::watch_gradients() {
  std::vector<Tensor> gradients;
  std::vector<StateRef> accumulated;
  const std::set<std::string> elsewhere = measured_elsewhere();
  stage_->visit([&](const StateRef& state) {
    const bool gradient = state.role == StateRole::gradient && !learner_->updates_in_backward();
    if (gradient && !elsewhere.contains(state.name)) gradients.push_back(state.view);
    if (gradient || state.role == StateRole::window) accumulated.push_back(state);
  });
  norm_->watch(std::move(gradients));
  lane_sums_.watch(std::move(accumulated));
  ops_->forget_repeats();
}

void Session::learner_restored() {
  Context run = context(false);
  scratch_.reset();
  learner_->restored(run);
  watch_gradients();
}

void Session::restored() {
  Context run = context(false);
  scratch_.reset();
  stage_->restored(run);
  ops_->forget_repeats();
}

bool Session::begin_step(Context& run, int64_t step) {
  scratch_.reset();
  const bool states_changed = learner_->begin_step(run, step);
  if (states_changed) watch_gradients();
  return states_changed;
}

void Session::begin_accumulation(const StepBatch& batch, double learning_rate, int64_t step) {
  step_ban_.reset();
  if (shared_gradients_.high_water() > 0 && batch.micro_batches.size() > 1) {
    fail(ErrorKind::generic, "a step of {} micro-batches where weights share one gradient",
         batch.micro_batches.size());
  }
  StepScalars scalars{};
  scalars.learning_rate = static_cast<float>(learning_rate);
  scalars.max_grad_norm = static_cast<float>(max_grad_norm_);
  scalars.targets = static_cast<double>(batch.targets);
  scalars.inverse_targets = batch.targets > 0 ? static_cast<float>(1.0 / scalars.targets) : 0.0f;
  scalars.step = narrow<uint32_t>(step);
  scalars.seed = seed_;
  write_scalars(scalars, kStepBeginBytes);
  Context run = context(true);
  begin_step(run, step);
}

int64_t Session::block_passes(const StepBatch& batch) const {
  const Place& place = use_.place;
  const auto count = std::ssize(batch.micro_batches);
  const int64_t micro_batches =
      place.lane_begin(place.end_lane(), count) - place.lane_begin(place.first_lane(), count);
  return 2 * micro_batches * (stage_->spec().last_block - stage_->spec().first_block);
}

void Session::accumulate(const StepBatch& batch, double learning_rate, int64_t step,
                         const ProgressCallback& progress) {
  const double waited_before = peers_->seconds_waited();
  begin_accumulation(batch, learning_rate, step);
  auto ban = std::make_unique<NoAllocation>(*memory_);
  Context run = context(true);
  // A device that works beside this thread has only been told what to do.
  if (progress && device_->shares_host_memory()) run.block_passed = &progress;
  use_.place.is_whole() ? accumulate_whole(run, batch) : accumulate_parts(run, batch);
  step_ban_ = std::move(ban);
  step_seconds_waited_ += peers_->seconds_waited() - waited_before;
}

void Session::accumulate_whole(Context& run, const StepBatch& batch) {
  MicroBatchBuffers& buffers = flights_.front().buffers;
  CountsBefore before{batch.first_token, 0};
  for (const MicroBatch& micro_batch : batch.micro_batches) {
    const Batch on_device = buffers.upload(*ops_, micro_batch, before);
    run.completes_gradients = &micro_batch == &batch.micro_batches.back();
    const auto work = [&] {
      scratch_.reset();
      Stash stash = buffers.begin(true, recompute_);
      const Tensor hidden = stage_->forward(run, on_device, nullptr, stash);
      const Tensor d = scratch_.tensor(DType::f32, {hidden.rows(), hidden.cols()});
      stage_->loss(run, on_device, hidden, &d);
      stage_->backward(run, on_device, d, stash);
    };
    // The key has everything that determines what is issued and where its tensors lie.
    ops_->repeat({kMicroBatch, on_device.tokens(), on_device.sequences(), on_device.targets.size(),
                  run.completes_gradients ? 1 : 0},
                 work);
    before.tokens += micro_batch.tokens();
    before.targets += micro_batch.target_count;
  }
}

void Session::apply(const WeightDecay& weight_decay) {
  const double waited_before = peers_->seconds_waited();
  const auto ban = std::move(step_ban_);
  Context run = context(true);
  if (use_.place.is_whole()) {
    const auto work = [&] {
      scratch_.reset();
      norm_->compute(run);
      stage_->apply(run, weight_decay);
    };
    ops_->repeat({kUpdate, std::bit_cast<int64_t>(weight_decay.matrices),
                  std::bit_cast<int64_t>(weight_decay.vectors)},
                 work);
  } else {
    apply_parts(weight_decay);
  }
  learner_->overlap_with_step(run);
  step_seconds_waited_ += peers_->seconds_waited() - waited_before;
}

StepResult Session::result() {
  check_maps();
  const StepScalars scalars = read_scalars();
  const bool finite = scalars.finite != 0;
  if (!finite && !ops_->plans_only()) write_scalars(StepScalars{}, sizeof(StepScalars));
  return {scalars.last_step, scalars.loss, static_cast<double>(scalars.grad_norm), finite};
}

std::string Session::non_finite_parameter() {
  Context run = context(false);
  scratch_.reset();
  std::string name;
  std::set<const void*> stored;
  visit([&](const StateRef& state) {
    if (state.role == StateRole::stored) stored.insert(state.view.raw());
    if (state.role != StateRole::parameter || !name.empty()) return;
    if (!all_finite(run, state.view)) name = state.name;
  });
  if (!name.empty()) return name;
  for (const auto& parameter : stage_->parameters()) {
    const Weight& weight = *parameter->weight;
    if (stored.contains(weight.storage().bytes.raw()) && !is_finite(run, weight)) {
      return weight.name();
    }
  }
  return {};
}

void Session::read_weight(const Weight& weight, int64_t begin, int64_t end, const Tensor& out) {
  scratch_.reset();
  const Tensor panel = scratch_.tensor(DType::f32, {end - begin, weight.cols()});
  weight.decode(*ops_, begin, end, panel);
  ops_->copy(out, panel);
}

}  // namespace jackscrew
