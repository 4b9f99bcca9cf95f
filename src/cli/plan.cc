// jackscrew plan: computes the memory that a training run will need, before it runs.
#include "session/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "base/console.h"
#include "base/error.h"
#include "base/process_memory.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "session/adapter.h"
#include "session/advice.h"
#include "session/fit.h"
#include "session/place.h"
#include "session/rank_fit.h"
#include "train/disk_plan.h"
#include "train/run_exports.h"

namespace jackscrew {

namespace {

constexpr const char* kPurposeRemarks[kPurposes] = {
    "the model's weights as they are stored",
    "exact copies of trained weights that are stored in fewer bits",
    "what is learned beside the model: LoRA's factors, a soft prompt",
    "projections of gradients",
    "gradients of what is trained",
    "optimizer states of what is trained",
    "saved by the forward pass for the backward pass",
    "KV cache",
    "temporary buffers of matrix products, attention and loss; RoPE tables",
    "while the model is loaded; freed before training",
    "buffers for other devices",
    "token ids and targets of a micro-batch",
};

// The tokenizer; if the model has none that can be used, that of bytes, which is the smallest.
Tokenizer tokenizer_of(const Recipe& recipe, const ModelFiles& files) {
  try {
    return make_tokenizer(recipe.tokenizer, files);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::model) throw;
    return Tokenizer(byte_tokenizer());
  }
}

DiskPlan disk_of(const Recipe& recipe, const ModelFiles& files) {
  return plan_disk(recipe, files, tokenizer_of(recipe, files), recipe.max_steps);
}

void print_row(const std::string& name, int64_t bytes, const std::string& remark) {
  fmt::print("    {:<14}{:>12}   {}\n", name, human_bytes(bytes), remark);
}

void print_run(const Recipe& recipe, const ModelFiles& files, const SessionPlan& plan) {
  fmt::print("{}: {} parameters, learner {}, storage {}\n", one_line(recipe.model),
             human_count(files.config.parameter_count()), recipe.learner, recipe.storage);
  fmt::print("micro-batches of {} x {} tokens, {} per step; activations are {}{}\n\n",
             recipe.micro_batch_size, recipe.sequence_len, recipe.gradient_accumulation_steps,
             plan.recompute ? "recomputed in the backward pass" : "kept for the backward pass",
             recipe.gradient_checkpointing ? "" : " (gradient_checkpointing=auto)");
}

void print_ledger(const Ledger& ledger) {
  for (size_t p = 0; p < kPurposes; ++p) {
    const int64_t bytes = ledger.at_peak[p];
    if (bytes > 0) print_row(purpose_name(static_cast<Purpose>(p)), bytes, kPurposeRemarks[p]);
  }
}

void print_disk(const Recipe& recipe, const DiskPlan& disk) {
  if (disk.masters > 0) print_row("masters", disk.masters, "while the run lasts");
  if (disk.checkpoints > 0) {
    print_row("checkpoints", disk.all_checkpoints(),
              fmt::format("{} of {}{}", disk.checkpoints, human_bytes(disk.checkpoint),
                          recipe.max_steps > 0
                              ? ""
                              : fmt::format(", if the run has {} steps: set max_steps for others",
                                            kPlannedSteps)));
  }
  print_row("result", disk.result, "what the run leaves");
  if (disk.exports > 0) print_row("exports", disk.exports, "models beside it (export)");
}

void print_table(const Recipe& recipe, const ModelFiles& files, const SessionPlan& plan,
                 const Device& device) {
  fmt::print("  device ({})\n", device.name());
  print_ledger(plan.ledger);
  print_row("peak", plan.ledger.peak, fmt::format("reached in phase {}", plan.ledger.peak_at));
  if (plan.mapped_bytes > 0) {
    print_row("mapped", plan.mapped_bytes,
              "weights that stay in their file's map, beside the peak: the system may drop them");
  }
  fmt::print("  host\n");
  print_ledger(plan.host);
  print_row("peak", plan.host.peak,
            device.own_memory()
                ? "memory-mapped files are not counted"
                : "in addition to the above, as the device is the CPU; memory-mapped files are not "
                  "counted");
  fmt::print("  disk\n");
  print_disk(recipe, disk_of(recipe, files));
  if (!recipe.output_dir.empty() && files_take_memory(recipe.output_dir)) {
    fmt::print("    output_dir is in memory (tmpfs): these files take memory beside the above\n");
  }
}

// Compares the plan with the budget and, where the device has none, with what the machine has free.
void print_verdict(const Recipe& recipe, const SessionPlan& plan, const Device& device) {
  const int64_t peak = plan.ledger.peak;
  const int64_t host = plan.host.peak;
  const bool is_fit = fits(recipe, plan);
  // Where it does not fit, only budgets that are too small are named.
  std::string needs;
  if (recipe.device_memory && (is_fit || peak > *recipe.device_memory)) {
    const int64_t budget = *recipe.device_memory;
    needs = fmt::format("{}, {} is {}", human_bytes(peak, budget), budget_option(recipe),
                        human_bytes(budget, peak));
  }
  if (recipe.host_memory && (is_fit || host > *recipe.host_memory)) {
    const int64_t budget = *recipe.host_memory;
    needs += fmt::format("{}{} on the host, host_memory is {}", needs.empty() ? "" : "; ",
                         human_bytes(host, budget), human_bytes(budget, host));
  } else if (recipe.device_memory && host > 0) {
    needs += fmt::format("; {} on the host", human_bytes(host));
  }
  if (!needs.empty()) {
    fmt::print("\n{}: needs {}\n", is_fit ? "fits" : "does not fit", needs);
  }
  const std::optional<int64_t> own = device.bookable_memory();
  if (own ? recipe.device_memory.has_value() : budgets_machine(recipe, plan, device)) return;
  const int64_t needed = own ? peak : peak + host;
  const int64_t available = own.value_or(available_memory_bytes());
  const std::string where = own ? device.name() : "this machine";
  const char* const unset = recipe.device_memory ? "host_memory" : "device_memory";
  if (available == 0) {
    fmt::print("\n{} is not set\n", unset);
  } else if (needed <= available) {
    fmt::print("\n{} is not set; {} is free on {} now\n", unset, human_bytes(available), where);
  } else {
    fmt::print("\nwarning: {} is not set, and only {} is free on {} now\n", unset,
               human_bytes(available, needed), where);
  }
}

std::optional<Advice> fitting_settings(const Recipe& recipe, const ModelFiles& files,
                                       const SessionPlan& plan) {
  return fitting_advice(recipe, files, plan, {recipe.device_memory, recipe.host_memory, {}});
}

void print_advice(const Recipe& recipe, const ModelFiles& files, const SessionPlan& plan) {
  const std::vector<Advice> all = memory_advice(recipe, files, plan);
  if (!all.empty()) fmt::print("what would help\n");
  const bool device_fits = !recipe.device_memory || plan.ledger.peak <= *recipe.device_memory;
  const bool host_fits = !recipe.host_memory || plan.host.peak <= *recipe.host_memory;
  // If only one side exceeds its budget, show the saving there, if there is one; otherwise show the
  // larger saving.
  const auto helps_host = [&](const Advice& advice) {
    if (!device_fits && host_fits) return advice.device_saving <= 0;
    if (device_fits && !host_fits) return advice.host_saving > 0;
    return advice.host_saving > advice.device_saving;
  };
  for (const Advice& advice : all) {
    const bool host = helps_host(advice);
    fmt::print("  -{:<12}{:<8}to {:<12} {}   ({})\n",
               human_bytes(host ? advice.host_saving : advice.device_saving),
               host ? "host" : "device", human_bytes(host ? advice.host : advice.device),
               advice.settings,
               advice.host_saving < 0 ? fmt::format("{}; {} more on the host", advice.remark,
                                                    human_bytes(-advice.host_saving))
                                      : advice.remark);
  }
  if (fits(recipe, plan)) return;
  if (const auto fitting = fitting_settings(recipe, files, plan)) {
    fmt::print("these settings would fit, in {}\n  {}\n", fitting->needs(), fitting->settings);
  } else {
    fmt::print("no combination of these settings would fit\n");
  }
}

// `other`: settings that do although --fit leaves them alone, since they say what is trained.
[[noreturn]] void refuse_fit(const std::optional<Advice>& other = {}) {
  throw Error(ErrorKind::does_not_fit, "no setting makes this fit",
              other ? fmt::format("--fit leaves sequence_len alone; these would fit, in {}: {}",
                                  other->needs(), other->settings)
                    : "shorten sequence_len, or take a smaller model");
}

JsonObject settings_json(const std::string& settings) {
  JsonObject json;
  for (const Assignment& setting : split_settings(settings, "plan")) {
    json.add(setting.name, setting.text);
  }
  return json;
}

// The disk space of rank 0, which writes the run's files. The masters are those of its own stage.
DiskPlan disk_of_first(const Recipe& recipe, const ModelFiles& files, const RanksPlan& plan) {
  DiskPlan disk = disk_of(recipe, files);
  disk.masters = plan.ranks.front().disk.peak;
  return disk;
}

JsonObject ranks_plan_json(const Recipe& recipe, const ModelFiles& files, const RanksPlan& plan) {
  JsonObject json =
      plan_json(of_rank(recipe, 0), plan.ranks.front(), disk_of_first(recipe, files, plan));
  json.add("lanes", plan.layout.lanes).add("bubble", plan.bubble);
  json.add("all_fit", plan.all_fit());
  return json.add_json("ranks", ranks_json(plan));
}

// Prints the recipe to stdout, ready to be saved, and what it needs to stderr; or plan() as JSON.
int print_fit(const Recipe& recipe, const std::string& needs, const std::string& settings,
              const std::function<JsonObject()>& plan) {
  if (recipe.json) {
    fmt::print("{}\n", plan().add("settings", settings_json(settings)).text());
    return 0;
  }
  write_stderr(fmt::format("fits: needs {}, with {}\n", needs,
                           settings.empty() ? "the recipe as it is" : settings));
  fmt::print("{}", recipe.to_yaml());
  return 0;
}

int show_ranks_fit(const Recipe& recipe, const ModelFiles& files) {
  const auto fit = fastest_fit(recipe, files, recipe.ranks);
  if (!fit) {
    // Stages that the recipe asks for were all that was tried: what they contradict is told first.
    if (recipe.options.asks_for("pipeline_stages")) plan_ranks(recipe, files, recipe.ranks);
    refuse_fit();
  }
  int64_t device = 0;
  int64_t host = 0;
  for (const SessionPlan& rank : fit->plan.ranks) {
    device = std::max(device, rank.ledger.peak);
    host = std::max(host, rank.host.peak);
  }
  return print_fit(fit->recipe,
                   fmt::format("{} on the device of a rank and {} on its host at most",
                               human_bytes(device), human_bytes(host)),
                   fit->settings, [&] { return ranks_plan_json(fit->recipe, files, fit->plan); });
}

int show_fit(const Recipe& recipe, const ModelFiles& files) {
  const auto fit = fastest_fit(recipe, files);
  if (!fit) {
    const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
    refuse_fit(fitting_settings(recipe, files, plan));
  }
  return print_fit(
      fit->recipe,
      fmt::format("{} on the device and {} on the host", human_bytes(fit->plan.ledger.peak),
                  human_bytes(fit->plan.host.peak)),
      fit->settings,
      [&] { return plan_json(fit->recipe, fit->plan, disk_of(fit->recipe, files)); });
}

// Prints how long the rank that sends the most is busy sending on common networks.
void print_wire(int64_t bytes) {
  fmt::print("a rank sends at most {} in a step:", human_bytes(bytes));
  const char* separator = " ";
  for (const int gigabits : {1, 10, 100}) {
    fmt::print("{}{:.3g} s at {} Gbit/s", separator,
               static_cast<double>(bytes) * 8 / (gigabits * 1e9), gigabits);
    separator = ", ";
  }
  fmt::print("\n");
}

// The ranks that take what this one does: ", and 2, 4".
std::string ranks_like(const RanksPlan& plan, int rank) {
  std::string others;
  for (int other = rank + 1; other < plan.layout.ranks(); ++other) {
    if (plan.like[static_cast<size_t>(other)] != rank) continue;
    others += fmt::format("{}{}", others.empty() ? ", and " : ", ", other);
  }
  return others;
}

int show_ranks(const Recipe& recipe, const ModelFiles& files) {
  const RanksPlan plan = plan_ranks(recipe, files, recipe.ranks);
  const int exit_code = plan.all_fit() ? 0 : static_cast<int>(ErrorKind::does_not_fit);
  if (recipe.json) {
    fmt::print("{}\n", ranks_plan_json(recipe, files, plan).text());
    return exit_code;
  }
  print_run(recipe, files, plan.ranks.front());
  fmt::print("{}: {} of the model in {}, {} in a step\n\n", counted(plan.layout.ranks(), "rank"),
             counted(plan.layout.replicas, "copy", "copies"), counted(plan.layout.stages, "stage"),
             counted(plan.layout.lanes, "lane"));
  fmt::print("  {:>4}  {:>5}  {:<10}{:>12}{:>12}{:>18}\n", "rank", "stage", "blocks", "device",
             "host", "sent in a step");
  const std::vector<int64_t> whole = {0, files.config.num_hidden_layers};
  const std::vector<int64_t>& split = plan.stage_split.empty() ? whole : plan.stage_split;
  int64_t most_sent = 0;
  for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
    const auto stage = static_cast<size_t>(plan.layout.stage_of(rank));
    const SessionPlan& of = plan.ranks[static_cast<size_t>(rank)];
    most_sent = std::max(most_sent, of.sent.all());
    fmt::print("  {:>4}  {:>5}  {:<10}{:>12}{:>12}{:>18}{}\n", rank, stage,
               blocks_text(split, stage), human_bytes(of.ledger.peak), human_bytes(of.host.peak),
               human_bytes(of.sent.all()),
               plan.fits[static_cast<size_t>(rank)] ? "" : "   does not fit");
  }
  for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
    if (plan.like[static_cast<size_t>(rank)] < rank) continue;
    const SessionPlan& of = plan.ranks[static_cast<size_t>(rank)];
    fmt::print("\n  rank {}{}\n", rank, ranks_like(plan, rank));
    print_ledger(of.ledger);
    if (of.host.peak > 0) fmt::print("   on the host\n");
    print_ledger(of.host);
    if (of.disk.peak > 0) fmt::print("   on the disk\n");
    print_ledger(of.disk);
  }
  fmt::print("\n  disk, of rank 0\n");
  print_disk(recipe, disk_of_first(recipe, files, plan));
  fmt::print("\n");
  if (plan.layout.stages > 1) {
    fmt::print(
        "equal stages wait {:.0f}% of a step for each other; more micro-batches in a step "
        "wait less\n",
        100.0 * plan.bubble);
  }
  print_wire(most_sent);
  return exit_code;
}

int show_run(const Recipe& recipe, const ModelFiles& files) {
  const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
  if (recipe.json) {
    fmt::print("{}\n", plan_json(recipe, plan, disk_of(recipe, files)).text());
  } else {
    print_run(recipe, files, plan);
    const auto device = open_device(recipe);
    print_table(recipe, files, plan, *device);
    print_verdict(recipe, plan, *device);
    print_advice(recipe, files, plan);
  }
  return fits(recipe, plan) ? 0 : static_cast<int>(ErrorKind::does_not_fit);
}

void require_budget(const Recipe& recipe) {
  if (recipe.device_memory || recipe.host_memory || !recipe.rank_device_memory.empty()) return;
  throw Error(ErrorKind::usage, "--fit needs a budget", "set device_memory, host_memory or both");
}

int show_plan(const Recipe& given) {
  Recipe recipe = with_adapter_options(given);
  recipe.options.require("model", "plan");
  const ModelFiles files = open_model(recipe.model, recipe.adapter, recipe.tokenizer);
  settle_lengths(recipe, files);
  check_exports(recipe, files);
  if (recipe.fit) require_budget(recipe);
  if (recipe.ranks > 1) {
    return recipe.fit ? show_ranks_fit(recipe, files) : show_ranks(recipe, files);
  }
  // Refuses what one rank cannot do.
  stage_split_of(recipe, files.config, layout_of(recipe, 1).stages);
  const Recipe own = of_rank(recipe, 0);
  return own.fit ? show_fit(own, files) : show_run(own, files);
}

}  // namespace

int run_plan(Arguments arguments) {
  return with_recipe(arguments, 0, "plan", show_plan);
}

}  // namespace jackscrew
