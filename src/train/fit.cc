#include "train/fit.h"

#include <algorithm>

#include "base/error.h"

namespace jackscrew {

namespace {

// A setting that takes less memory, and the factor by which a step takes longer for it. The factors
// only rank: recomputing adds a third to the arithmetic; halves of a micro-batch read and decode
// the weights twice as often; the others touch every weight once a step, or a group once a
// rotation.
struct Change {
  std::string settings;  // "name=value name=value"; empty: as asked for
  double cost;
};
using Choices = std::vector<Change>;  // of one knob

constexpr double kRecompute = 4.0 / 3.0;
constexpr double kHalfBatch = 1.03;
constexpr double kOtherOptimizer = 1.01;
constexpr double kOtherStorage = 1.02;
constexpr double kFiles = 1.02;
// Not time, but learning: half as many active weights are worth less than any of the others costs.
constexpr double kHalfActive = 1.5;

Choices recompute_knob(const Recipe& recipe) {
  if (recipe.gradient_checkpointing.value_or(false)) return {{"", 1.0}};
  return {{"gradient_checkpointing=false", 1.0}, {"gradient_checkpointing=true", kRecompute}};
}

Choices batch_knob(const Recipe& recipe) {
  Choices knob = {{"", 1.0}};
  double cost = 1.0;
  int64_t rows = recipe.micro_batch_size;
  int64_t accumulation = recipe.gradient_accumulation_steps;
  while (rows % 2 == 0) {
    rows /= 2;
    accumulation = checked_mul(accumulation, 2);
    cost *= kHalfBatch;
    knob.push_back(
        {fmt::format("micro_batch_size={} gradient_accumulation_steps={}", rows, accumulation),
         cost});
  }
  return knob;
}

Choices optimizer_knob(const Recipe& recipe) {
  Choices knob = {{"", 1.0}};
  if (recipe.optimizer == "adamw") knob.push_back({"optimizer=adamw_8bit", kOtherOptimizer});
  return knob;
}

Choices storage_knob(const Recipe& recipe) {
  Choices knob = {{"", 1.0}};
  if (recipe.storage == "keep" || recipe.storage == "f32") {
    knob.push_back({"storage=bf16", kOtherStorage});
  }
  return knob;
}

Choices rotation_knob(const Recipe& recipe) {
  Choices knob = {{"", 1.0}};
  if (recipe.learner != "rotary") return knob;
  double cost = 1.0;
  for (const char* share : {"50%", "25%", "10%", "5%"}) {
    cost *= kHalfActive;
    knob.push_back({fmt::format("active_params={}", share), cost});
  }
  return knob;
}

Choices master_knob(const Recipe& recipe) {
  Choices knob = {{"", 1.0}};
  if (recipe.learner == "rotary" && recipe.options.text("master") == "ram") {
    knob.push_back({"master=mmap", kFiles});
  }
  return knob;
}

// Every combination of one change per knob, the cheapest first.
std::vector<Change> combinations(const std::vector<Choices>& knobs) {
  std::vector<Change> all = {{"", 1.0}};
  for (const Choices& knob : knobs) {
    std::vector<Change> next;
    for (const Change& before : all) {
      for (const Change& change : knob) {
        const bool space = !before.settings.empty() && !change.settings.empty();
        next.push_back(
            {before.settings + (space ? " " : "") + change.settings, before.cost * change.cost});
      }
    }
    all = std::move(next);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Change& a, const Change& b) { return a.cost < b.cost; });
  return all;
}

}  // namespace

std::optional<Fit> fastest_fit(const Recipe& recipe, const ModelFiles& files,
                               std::span<const LearnerTable> learners) {
  const std::vector<Choices> knobs = {batch_knob(recipe),     recompute_knob(recipe),
                                      optimizer_knob(recipe), storage_knob(recipe),
                                      rotation_knob(recipe),  master_knob(recipe)};
  for (const Change& change : combinations(knobs)) {
    OptionSet options = recipe.options;
    Fit fit;
    fit.settings = split_words(change.settings.c_str());
    for (const std::string& setting : fit.settings) {
      const size_t equals = setting.find('=');
      options.set(setting.substr(0, equals), setting.substr(equals + 1), "--fit");
    }
    try {
      fit.recipe = resolve_recipe(options, learners);
      fit.plan = Session::rehearse(fit.recipe, files, training_use(fit.recipe));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      continue;  // a combination that makes no sense for this model
    }
    if (fits(fit.recipe, fit.plan)) return fit;
  }
  return std::nullopt;
}

}  // namespace jackscrew
