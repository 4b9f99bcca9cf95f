#include "train/plan.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/process_memory.h"
#include "base/text.h"

namespace jackscrew {

namespace {

// A change of the recipe, or nullopt where it changes nothing.
struct Change {
  std::string settings;
  std::string remark;
  Recipe recipe;
};
using Changer = std::optional<Change> (*)(const Recipe&, const ModelFiles&);

std::optional<Change> recompute_blocks(const Recipe& recipe, const ModelFiles&) {
  if (recipe.gradient_checkpointing.value_or(false)) return std::nullopt;
  Change change{"gradient_checkpointing=true", "a third more arithmetic", recipe};
  change.recipe.gradient_checkpointing = true;
  return change;
}

std::optional<Change> smaller_micro_batch(const Recipe& recipe, const ModelFiles&) {
  if (recipe.micro_batch_size == 1) return std::nullopt;
  Recipe changed = recipe;
  changed.micro_batch_size = 1;
  changed.gradient_accumulation_steps =
      checked_mul(recipe.gradient_accumulation_steps, recipe.micro_batch_size);
  return Change{fmt::format("micro_batch_size=1 gradient_accumulation_steps={}",
                            changed.gradient_accumulation_steps),
                "the same steps in smaller pieces", changed};
}

std::optional<Change> narrower_moments(const Recipe& recipe, const ModelFiles&) {
  if (recipe.optimizer != "adamw") return std::nullopt;
  Change change{"optimizer=adamw_8bit", "moments as 8-bit codes", recipe};
  change.recipe.optimizer = "adamw_8bit";
  return change;
}

std::optional<Change> fewer_active(const Recipe& recipe, const ModelFiles&) {
  if (recipe.learner != "rotary") return std::nullopt;
  const std::string& share = recipe.options.text("active_params");
  const char* next = share == "100%"  ? "50%"
                     : share == "50%" ? "25%"
                     : share == "25%" ? "10%"
                     : share == "10%" ? "5%"
                                      : nullptr;
  if (next == nullptr) return std::nullopt;
  Change change{fmt::format("active_params={}", next), "a round takes longer", recipe};
  change.recipe.options.set("active_params", next, "plan");
  return change;
}

std::optional<Change> narrower_storage(const Recipe& recipe, const ModelFiles&) {
  if (recipe.storage != "keep" && recipe.storage != "f32") return std::nullopt;
  Change change{"storage=bf16", "weights rounded to bf16", recipe};
  change.recipe.storage = "bf16";
  return change;
}

std::optional<Change> shorter_sequences(const Recipe& recipe, const ModelFiles&) {
  constexpr int64_t kShortest = 64;  // below, no text has room
  if (recipe.sequence_len / 2 < kShortest) return std::nullopt;
  Recipe changed = recipe;
  changed.sequence_len = recipe.sequence_len / 2;
  return Change{fmt::format("sequence_len={}", changed.sequence_len), "longer records are cut",
                changed};
}

std::optional<Change> adapters_only(const Recipe& recipe, const ModelFiles& files) {
  // Adapters over weights that never learnt anything teach nothing.
  if (recipe.learner == "lora" || recipe.random_init || files.source == nullptr) {
    return std::nullopt;
  }
  Change change{"method=lora", "learns an adapter, not the model", recipe};
  change.recipe.method = "lora";
  change.recipe.learner = "lora";
  return change;
}

// In the order in which one would rather have them: first those that leave the result as it is.
constexpr Changer kChangers[] = {recompute_blocks, smaller_micro_batch, narrower_moments,
                                 narrower_storage, fewer_active,        shorter_sequences,
                                 adapters_only};

int64_t peak_of(const Recipe& recipe, const ModelFiles& files) {
  return Session::rehearse(recipe, files, training_use(recipe)).ledger.peak;
}

// nullopt when the changed run is refused (a storage that cannot be trained) or saves nothing.
std::optional<Knob> try_change(const Change& change, const ModelFiles& files,
                               const SessionPlan& plan) {
  try {
    const int64_t peak = peak_of(change.recipe, files);
    if (peak >= plan.ledger.peak) return std::nullopt;
    return Knob{change.settings, change.remark, peak, plan.ledger.peak - peak};
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::usage) return std::nullopt;
    throw;
  }
}

}  // namespace

SessionUse training_use(const Recipe& recipe) {
  return {.training = true,
          .tokens = checked_mul(recipe.micro_batch_size, recipe.sequence_len),
          .max_positions = recipe.sequence_len,
          .kv_tokens = 0,
          .logits_rows = 0};
}

DiskPlan plan_disk(const Recipe& recipe, const ModelConfig& config, const SessionPlan& plan) {
  const auto booked = [&](Purpose purpose) {
    return plan.ledger.current[static_cast<size_t>(purpose)];
  };
  DiskPlan disk;
  const int64_t adapters = booked(Purpose::adapters);
  // A checkpoint holds what learns in f32, whatever it is stored as, and the optimizer's states.
  const int64_t learned = adapters > 0 ? adapters : checked_mul(config.parameter_count(), 4);
  disk.checkpoint = checked_add(learned, booked(Purpose::optimizer));
  // A model directory holds no formats for linears only, and exact masters where there are any:
  // f32.
  const bool widened = recipe.storage != "keep" && find_format(recipe.storage).for_linears_only();
  disk.result = adapters > 0                       ? adapters
                : widened || plan.masters.peak > 0 ? checked_mul(config.parameter_count(), 4)
                                                   : booked(Purpose::weights);
  if (plan.masters_in_files) disk.masters = plan.masters.peak;
  if (recipe.save_steps == 0) return disk;
  // A new one is complete before the oldest goes.
  disk.checkpoints = recipe.save_total_limit + 1;
  if (recipe.max_steps > 0) {
    const int64_t saved = ceil_div(recipe.max_steps, recipe.save_steps);
    disk.checkpoints = recipe.save_total_limit == 0 ? saved : std::min(saved, disk.checkpoints);
  }
  return disk;
}

std::vector<Knob> memory_knobs(const Recipe& recipe, const ModelFiles& files,
                               const SessionPlan& plan) {
  std::vector<Knob> knobs;
  for (const Changer changer : kChangers) {
    const auto change = changer(recipe, files);
    if (!change) continue;
    if (const auto knob = try_change(*change, files, plan)) knobs.push_back(*knob);
  }
  std::stable_sort(knobs.begin(), knobs.end(),
                   [](const Knob& a, const Knob& b) { return a.saving > b.saving; });
  return knobs;
}

std::optional<Knob> fitting_knob(const Recipe& recipe, const ModelFiles& files,
                                 const SessionPlan& plan, int64_t budget) {
  for (const Changer changer : kChangers) {
    const auto change = changer(recipe, files);
    if (!change) continue;
    const auto knob = try_change(*change, files, plan);
    if (knob && knob->peak <= budget) return knob;
  }
  // Together, one more at a time; sequences may be halved again and again.
  Change all{{}, {}, recipe};
  int64_t peak = plan.ledger.peak;
  for (const Changer changer : kChangers) {
    while (const auto change = changer(all.recipe, files)) {
      const auto knob = try_change(*change, files, plan);
      if (!knob || knob->peak >= peak) break;
      // A length that is halved again replaces the one before.
      if (changer == shorter_sequences && all.recipe.sequence_len != recipe.sequence_len) {
        all.settings.resize(all.settings.rfind(" sequence_len="));
      } else {
        all.remark += (all.remark.empty() ? "" : "; ") + change->remark;
      }
      all.settings += " " + change->settings;
      all.recipe = change->recipe;
      peak = knob->peak;
      if (peak <= budget) {
        return Knob{all.settings.substr(1), all.remark, peak, plan.ledger.peak - peak};
      }
    }
  }
  return std::nullopt;
}

int64_t host_peak(const SessionPlan& plan) {
  return plan.masters_in_files ? 0 : plan.masters.peak;
}

bool fits(const Recipe& recipe, const SessionPlan& plan) {
  return (!recipe.device_memory || plan.ledger.peak <= *recipe.device_memory) &&
         (!recipe.host_memory || host_peak(plan) <= *recipe.host_memory);
}

void settle_lengths(Recipe& recipe, const ModelConfig& config) {
  const int64_t positions = config.max_position_embeddings;
  if (recipe.sequence_len > positions && !recipe.options.was_set("sequence_len")) {
    recipe.sequence_len = positions;
    recipe.options.imply("sequence_len", std::to_string(positions), recipe.model);
  }
  if (recipe.sequence_len > positions) {
    throw Error(ErrorKind::usage,
                fmt::format("sequence_len is {}, but {} has only {} positions", recipe.sequence_len,
                            recipe.model, positions),
                fmt::format("use sequence_len={}", positions));
  }
  const int64_t tokens = checked_mul(recipe.micro_batch_size, recipe.sequence_len);
  if (tokens > std::numeric_limits<int32_t>::max()) {
    throw Error(ErrorKind::usage,
                fmt::format("micro_batch_size {} x sequence_len {} are more tokens than a "
                            "micro-batch can have",
                            recipe.micro_batch_size, recipe.sequence_len),
                "take fewer sequences at once, and more gradient_accumulation_steps");
  }
}

void require_fit(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
                 const SessionPlan& plan) {
  if (recipe.host_memory && host_peak(plan) > *recipe.host_memory) {
    throw Error(ErrorKind::does_not_fit,
                fmt::format("the masters need {} of the host, and host_memory is {}",
                            human_bytes(host_peak(plan)), human_bytes(*recipe.host_memory)),
                "keep them in files with master=mmap, or halve them with master_dtype=bf16");
  }
  // On the CPU the device's memory and the host's are the same.
  const int64_t budget = recipe.device_memory.value_or(
      std::max<int64_t>(0, available_memory_bytes() - host_peak(plan)));
  if (budget == 0 || plan.ledger.peak <= budget) return;
  std::string hint = fmt::format("{}, set storage=bf16, or take a smaller {}",
                                 recipe.device_memory ? "raise it" : "close other programs",
                                 use.kv_tokens > 0 ? "max_new_tokens" : "sequence_len");
  if (use.training) {
    const auto knob = fitting_knob(recipe, files, plan, budget);
    hint =
        knob ? fmt::format("{} needs {}", knob->settings, human_bytes(knob->peak))
             : "nothing that can be set makes it fit; `jackscrew plan` shows what takes the memory";
  }
  throw Error(ErrorKind::does_not_fit,
              fmt::format("this needs {}, and {} {}", human_bytes(plan.ledger.peak),
                          recipe.device_memory ? "device_memory is" : "the machine has free only",
                          human_bytes(budget)),
              hint);
}

JsonObject ledger_json(const Ledger& ledger) {
  JsonObject purposes;
  for (int p = 0; p < kPurposes; ++p) {
    const int64_t bytes = ledger.at_peak[static_cast<size_t>(p)];
    if (bytes > 0) purposes.add(purpose_name(static_cast<Purpose>(p)), bytes);
  }
  return purposes.add("peak", ledger.peak);
}

JsonObject plan_json(const Recipe& recipe, const ModelConfig& config, const SessionPlan& plan) {
  const DiskPlan disk = plan_disk(recipe, config, plan);
  JsonObject json;
  json.add("device", ledger_json(plan.ledger));
  json.add("host", plan.masters_in_files ? JsonObject().add("peak", 0) : ledger_json(plan.masters));
  json.add("disk", JsonObject()
                       .add("masters", disk.masters)
                       .add("checkpoints", disk.checkpoint * disk.checkpoints)
                       .add("result", disk.result)
                       .add("peak", disk.peak()));
  return json.add("fits", fits(recipe, plan)).add("peak_at", plan.ledger.peak_at);
}

}  // namespace jackscrew
