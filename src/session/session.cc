#include "session/session.h"

#include <algorithm>
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

// The arenas of a plan for a run that fits. Throws Error(does_not_fit).
const ArenaSizes& fitting_arenas(const SessionPlan& plan, const Recipe& recipe, SessionMode mode) {
  const int64_t budget = recipe.device_memory.value_or(0);
  if (mode == SessionMode::run && budget > 0 && plan.ledger.peak > budget) {
    fail(ErrorKind::does_not_fit, "this run needs {}, over device_memory of {}",
         human_bytes(plan.ledger.peak), human_bytes(budget));
  }
  return plan.arenas;
}

}  // namespace

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
    : Session(recipe, files, use, plan, SessionMode::run, hooks) {}

Session::Session(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
                 const SessionPlan& plan, SessionMode mode, const SessionHooks& hooks)
    : use_(use),
      device_(recipe, mode, fitting_arenas(plan, recipe, mode), hooks.device, hooks.wrap),
      learner_(make_learner(recipe, files.config.tie_word_embeddings)),
      optimizer_(make_optimizer(recipe.optimizer,
                                {recipe.adam_beta1, recipe.adam_beta2, recipe.adam_epsilon})),
      // Of the whole model, so that all ranks have one arithmetic.
      arithmetic_(find_product(recipe.product).make(recipe.options, device_.ops()),
                  recipe.product_exclude, linears_of(files.config, StageSpec::whole(files.config))),
      peers_(hooks.transport, use.place.layout, use.place.rank) {
  require_bf16_for_cudnn(recipe, arithmetic_, device_.ops(), device_.hardware());
  reserve_tokens(files.config);
  if (learner_->masters_in_files()) {
    device_.keep_masters_in(masters_directory(recipe.output_dir, use_.place.rank));
  }
  std::vector<InFlight> flights = make_flights(recipe, files.config.hidden_size);
  build_stage(recipe, files, hooks.loaded);
  passes_.emplace(device_, use_.place, *stage_, peers_, std::move(flights), plan.recompute);
  if (use.training) {
    step_.emplace(*passes_, *learner_,
                  TrainingStep::Settings{recipe.max_grad_norm, recipe.seed, shared_gradients_});
    if (use_.place.layout.stages == 1) require_learning(recipe.learner, step_->gradients());
  }
  if (use_.logits_rows > 0) logits_.emplace(*passes_, use_, virtual_tokens());
  if (use.training) {
    // Last, for the learner's peak is beside everything else.
    Context run = device_.context(false);
    learner_->reserve(run);
    device_.reserve_replaced_master();
  }
  memory().set_phase(use.training ? "train" : "run");
}

std::unique_ptr<Learner> Session::make_learner(const Recipe& recipe, bool tied) {
  const bool uses = use_.training || !recipe.adapter.empty();
  auto learner = find_learner(uses ? recipe.learner : "frozen")
                     .make(with_head_of_adapter(recipe, tied).options);
  if (!use_.training || !recipe.fused_update) return learner;
  FusedOptions options{recipe.weight_decay, recipe.max_grad_norm > 0};
  if (recipe.gradient_accumulation_steps == 1) {
    shared_gradients_ = device_.make_arena(Purpose::gradients, &ArenaSizes::gradients);
    options.shared_gradients = &shared_gradients_;
  }
  return make_fused_learner(std::move(learner), options);
}

void Session::reserve_tokens(const ModelConfig& config) {
  if (use_.logits_rows == 0) return;
  const int64_t before = virtual_tokens();
  if (use_.training) {
    // sequence_len includes virtual tokens.
    use_.kv_tokens = before + answer_tokens(use_, config, before);
    return;
  }
  use_.tokens = checked_add(use_.tokens, before);
  use_.max_positions = checked_add(use_.max_positions, before);
  if (use_.kv_tokens > 0) use_.kv_tokens = checked_add(use_.kv_tokens, before);
}

std::vector<InFlight> Session::make_flights(const Recipe& recipe, int64_t hidden_size) {
  const Layout& layout = use_.place.layout;
  const int64_t micro_batches = layout.lanes_of_replica() * recipe.gradient_accumulation_steps;
  const int64_t count =
      use_.training ? flights_of(use_.place.stage(), layout.stages, micro_batches) : 1;
  std::vector<InFlight> flights;
  for (int64_t i = 0; i < count; ++i) {
    Arena stash = device_.make_arena(Purpose::activations, &ArenaSizes::stash);
    flights.push_back({MicroBatchBuffers(memory(), use_.tokens, std::move(stash))});
    if (layout.stages > 1) flights.back().staged = device_.make_staged(use_.tokens, hidden_size);
  }
  return flights;
}

void Session::build_stage(const Recipe& recipe, const ModelFiles& files,
                          const ProgressCallback& loaded) {
  std::optional<ModelFiles> original;
  if (use_.training && !learner_->original_model().empty()) {
    original = open_original(learner_->original_model());
  }
  StageLoader loader(recipe, files, original ? &*original : nullptr, *learner_, ops(),
                     device_.make_arena(Purpose::staging, &ArenaSizes::staging), loaded);
  if (!device_.measures()) loader.check_tied();
  const Layout& layout = use_.place.layout;
  const int64_t lane_sums = waiting_lane_sums(layout.lanes_of_replica());
  const LearnerContext slots{
      .memory = memory(),
      .masters = device_.masters(),
      .scratch = device_.scratch(),
      .scalars = device_.scalars(),
      .ops = ops(),
      .optimizer = *optimizer_,
      .seed = recipe.seed,
      .training = use_.training,
      .original = [&](const Weight& weight,
                      const Tensor& out) { loader.read_original(weight, out); },
      .lane_sums = lane_sums,
      .window_lane_sums = lane_sums + (layout.lanes > 1 ? 1 : 0),
      .sum_over_stages =
          [this](const std::function<double(double)>& add) { return peers_.sum_over_stages(add); },
      .is_measured_elsewhere =
          [this](const WeightSpec& weight) { return is_measured_elsewhere(use_.place, weight); },
      .encode =
          [&](const std::string& text) {
            return make_tokenizer(recipe.tokenizer, files).encode(text, false);
          },
      .learning_rate = recipe.learning_rate};
  const StageSpec whole = StageSpec::whole(files.config);
  const std::vector<WeightSpec> learnable = learnable_of(files.config, whole, arithmetic_);
  if (use_.training) {
    check_product_parameters(*learner_, product(), learnable);
    check_option_of_dw(*learner_, product(),
                       multiplied_by_product(files.config, whole, arithmetic_), recipe.options);
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
                   arithmetic_,
                   [&](const WeightSpec& weight) { return loader.format(weight); },
                   [&](Weight& weight) { loader.fill(weight); },
                   use_.max_positions,
                   use_.later_positions};
  if (maps_weights(recipe, use_.training, device())) {
    source_ = files.source;
    build.mapped = [&](const WeightSpec& weight, const Format& format) {
      return loader.mapped(weight, format);
    };
  }
  stage_ = std::make_unique<Stage>(files.config, use_.place.spec(files.config), build);
  loader.require_mapped();
  staging_bytes_ = loader.staging_bytes();
}

void Session::visit(const StateVisitor& visitor) const {
  learner_->visit(visitor);
  stage_->visit(visitor);
  check_maps();
}

void Session::learner_restored() {
  Context run = device_.context(false);
  device_.scratch().reset();
  learner_->restored(run);
  step_->watch_gradients();
}

void Session::restored() {
  Context run = device_.context(false);
  device_.scratch().reset();
  stage_->restored(run);
  ops().forget_repeats();
}

std::string Session::non_finite_parameter() {
  Context run = device_.context(false);
  device_.scratch().reset();
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
  device_.scratch().reset();
  const Tensor panel = device_.scratch().tensor(DType::f32, {end - begin, weight.cols()});
  weight.decode(ops(), begin, end, panel);
  ops().copy(out, panel);
}

double Session::loss_sum(const StepBatch& batch, const ProgressCallback& progress) {
  const std::vector<double> each = losses(batch, progress);
  return std::accumulate(each.begin(), each.end(), 0.0);
}

Tensor Session::logits(std::span<const int32_t> ids, int64_t rows, bool use_cache) {
  Tensor out;
  const auto compute = [&] { out = logits_->compute(ids, rows, use_cache); };
  if (logits_listener_) {
    logits_listener_(ids, rows, use_cache, compute);
  } else {
    compute();
  }
  return out;
}

DevicePeak Session::measure_peak() {
  const DType operands = ops().has_bf16() ? arithmetic_.attention_operands() : DType::f32;
  return jackscrew::measure_peak(ops(), device_.scratch(), operands);
}

}  // namespace jackscrew
