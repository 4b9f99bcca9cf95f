#include "session/knobs.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "learners/learner.h"
#include "recipe/run_options.h"

namespace jackscrew {

namespace {

// Cost factors, for ranking only: recomputation adds a third to the arithmetic; half micro-batches
// read and decode the weights twice as often; the others touch every weight once a step.
constexpr double kNoSamples = 1.0005;  // nothing that is trained changes, and no step
constexpr double kRecompute = 4.0 / 3.0;
constexpr double kHalfBatch = 1.03;
constexpr double kOtherOptimizer = 1.01;
constexpr double kFusedUpdate = 1.001;   // the same results, no slower
constexpr double kClipEachWeight = 1.1;  // no slower either, but smaller pieces change no result
constexpr double kBf16Storage = 1.02;
constexpr double kInt8Storage = 1.04;
constexpr double kNf4Storage = 1.5;  // costs precision rather than time, so recomputing ranks first
constexpr double kOtherMethod = 1.5;

// Where a step is short, the cache for sample answers needs more memory than the step. Where it is
// not, smaller micro-batches, which are another knob, may make it so.
Knob samples_knob(const Recipe& recipe, const ModelFiles& files) {
  SessionUse use = training_use(recipe);
  if (use.logits_rows == 0) return {};
  use.tokens = std::min(use.tokens, recipe.sequence_len);
  if (!answers_take_memory(use, files.config, virtual_tokens(recipe))) return {};
  return {"", {{"report_samples=0", "no sample answers in the report", kNoSamples}}};
}

Knob recompute_knob(const Recipe& recipe) {
  if (recipe.gradient_checkpointing.value_or(false)) return {};
  return {"gradient_checkpointing=false",
          {{"gradient_checkpointing=true", "a third more arithmetic", kRecompute}}};
}

int64_t smallest_factor(int64_t number) {
  for (int64_t factor = 2; factor * factor <= number; ++factor) {
    if (number % factor == 0) return factor;
  }
  return number;
}

Knob batch_knob(const Recipe& recipe) {
  Knob knob;
  double cost = 1.0;
  int64_t rows = recipe.micro_batch_size;
  int64_t accumulation = recipe.gradient_accumulation_steps;
  while (rows > 1) {
    const int64_t pieces = smallest_factor(rows);
    rows /= pieces;
    accumulation = checked_mul(accumulation, pieces);
    cost *= std::pow(kHalfBatch, std::log2(pieces));
    knob.positions.push_back(
        {fmt::format("micro_batch_size={} gradient_accumulation_steps={}", rows, accumulation),
         "the same steps in smaller pieces", cost});
  }
  return knob;
}

Knob optimizer_knob(const Recipe& recipe) {
  if (recipe.optimizer != "adamw") return {};
  return {"", {{"optimizer=adamw_8bit", "moments as 8-bit codes", kOtherOptimizer}}};
}

// Steps of several micro-batches need all gradients anyway.
Knob update_knob(const Recipe& recipe) {
  if (recipe.fused_update || recipe.gradient_accumulation_steps > 1) return {};
  const bool clips = recipe.max_grad_norm > 0;
  return {"",
          {{clips ? "update=fused max_grad_norm_of=weight" : "update=fused",
            clips ? "weights learn within the backward pass, gradients are clipped one by one"
                  : "weights learn within the backward pass",
            clips ? kClipEachWeight : kFusedUpdate}}};
}

// Whether the model's file has the blocks' matrices in fewer bits already.
bool has_rounded_matrices(const ModelFiles& files) {
  for (const WeightSpec& weight : weights_of(files.config, StageSpec::whole(files.config))) {
    const StoredTensor* stored =
        weight.is_block_matrix() ? files.source->find(weight.name) : nullptr;
    if (stored == nullptr) continue;
    return stored->size_bytes() < 2 * weight.rows * weight.cols;
  }
  return false;
}

// Weights that learn need bf16 at least, to hold what a step changes. Learners that store theirs in
// fewer bits keep masters beside them, and are methods of their own.
Knob storage_knob(const Recipe& recipe, const ModelFiles& files) {
  const std::string& storage = recipe.storage;
  const bool plain = storage == "keep" || storage == "f32";
  const bool half = storage == "bf16" || storage == "f16";
  if (!plain && !half && !storage.starts_with("int8")) return {};
  Knob knob;
  if (plain) knob.positions.push_back({"storage=bf16", "weights rounded to bf16", kBf16Storage});
  const auto learner = find_learner(recipe.learner).make(recipe.options);
  const WeightSpec matrix{"", 0, 0, WeightKind::linear, 0, "down_proj"};
  if (learner->changes(matrix)) return knob;
  const bool from_file =
      files.source != nullptr && !recipe.random_init && learner->original_model().empty();
  const char* const again =
      from_file && has_rounded_matrices(files) ? " (rounded a second time)" : "";
  const auto in_bits = [&](int bits) {
    return fmt::format("the blocks' weights in {} bits{}", bits, again);
  };
  if (plain || half) knob.positions.push_back({"storage=int8", in_bits(8), kInt8Storage});
  knob.positions.push_back({"storage=nf4", in_bits(4), kNf4Storage});
  return knob;
}

// Makes one knob of each option; its settings are adjacent in the learner's table.
void add_learner_knobs(const Recipe& recipe, std::vector<Knob>& knobs) {
  std::string_view last;
  for (const Saving& saving : find_learner(recipe.learner).savings) {
    const std::string_view setting = saving.setting;
    const std::string_view option = setting.substr(0, setting.find('='));
    if (option != last) knobs.emplace_back();
    last = option;
    knobs.back().positions.push_back({saving.setting, saving.remark, saving.cost});
  }
}

// The settings for a method with the learner of the same name. A learner that was given, as every
// run's recipe.yaml gives one, goes before the method's own and has to be replaced.
std::string settings_for(const char* method, const OptionSet& options) {
  std::string settings = fmt::format("method={}", method);
  const bool is_given = !comes_with_method(options.at("learner", method));
  if (is_given) settings += fmt::format(" learner={}", method);
  return settings;
}

}  // namespace

std::vector<Knob> knobs_of(const Recipe& recipe, const ModelFiles& files) {
  // Recomputation comes first. If it were left at auto, its savings would be credited to other
  // knobs.
  std::vector<Knob> knobs = {recompute_knob(recipe), samples_knob(recipe, files),
                             batch_knob(recipe),     optimizer_knob(recipe),
                             update_knob(recipe),    storage_knob(recipe, files)};
  add_learner_knobs(recipe, knobs);
  return knobs;
}

std::vector<Position> other_methods(const Recipe& recipe, const ModelFiles& files) {
  std::vector<Position> methods;
  if (recipe.learner == "full") {
    methods.push_back({settings_for("rotary", recipe.options), "all weights learn, a few at a time",
                       kOtherMethod});
  }
  // Adapters are of no use beside random weights.
  const bool learned = !recipe.random_init && files.source != nullptr;
  if (learned && recipe.learner != "lora") {
    methods.push_back(
        {settings_for("lora", recipe.options), "learns an adapter, not the model", kOtherMethod});
  }
  return methods;
}

std::vector<Choice> combinations(const std::vector<Knob>& knobs) {
  std::vector<Choice> all = {{"", 1.0}};
  for (const Knob& knob : knobs) {
    std::vector<Position> positions = {{knob.unturned, "", 1.0}};
    positions.insert(positions.end(), knob.positions.begin(), knob.positions.end());
    std::vector<Choice> next;
    for (const Choice& before : all) {
      for (const Position& position : positions) {
        next.push_back(
            {join_settings(before.settings, position.settings), before.cost * position.cost});
      }
    }
    all = std::move(next);
  }
  sort_by_cost(all);
  return all;
}

void sort_by_cost(std::vector<Choice>& choices) {
  std::ranges::stable_sort(choices, {}, &Choice::cost);
}

std::string last_of_each(const std::string& settings) {
  const std::vector<Assignment> all = split_settings(settings, "plan");
  std::string out;
  for (auto setting = all.begin(); setting != all.end(); ++setting) {
    const bool replaced = std::any_of(setting + 1, all.end(), [&](const Assignment& later) {
      return later.name == setting->name;
    });
    if (!replaced) out = join_settings(out, setting->name + "=" + setting->text);
  }
  return out;
}

std::string join_settings(const std::string& first, const std::string& last) {
  return first.empty() || last.empty() ? first + last : first + " " + last;
}

Recipe with_settings(const Recipe& recipe, std::string_view settings) {
  OptionSet options = recipe.options;
  for (const Assignment& setting : split_settings(settings, "plan")) {
    if (setting.name == "method") {
      choose_method(options, setting.text, setting.origin);
    } else {
      options.set(setting);
    }
  }
  Recipe changed = resolve_recipe(std::move(options), method_tables());
  changed.python_environments = recipe.python_environments;
  return changed;
}

std::optional<ChangedRun> rehearse_with(const Recipe& recipe, const ModelFiles& files,
                                        std::string_view settings,
                                        const std::optional<Place>& place) {
  return unless_refused([&] {
    Recipe changed = with_settings(recipe, settings);
    SessionUse use = training_use(changed);
    if (place) use.place = *place;
    SessionPlan plan = Session::rehearse(changed, files, use);
    return ChangedRun{std::move(changed), std::move(plan)};
  });
}

std::optional<SessionPlan> rehearse_use_with(const Recipe& recipe, const ModelFiles& files,
                                             std::string_view settings, const SessionUse& use) {
  return unless_refused(
      [&] { return Session::rehearse(with_settings(recipe, settings), files, use); });
}

}  // namespace jackscrew
