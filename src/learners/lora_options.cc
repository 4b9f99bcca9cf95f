#include "learners/lora_options.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/choices.h"
#include "base/error.h"
#include "base/text.h"
#include "learners/linear_targets.h"
#include "optim/optimizer.h"

namespace jackscrew {

namespace {

using nlohmann::json;

constexpr int64_t kMostRank = 4096;
constexpr double kMostAlpha = 1e6;  // of an adapter that begins: others have what they have

constexpr Choices kStarts("default loftq pissa",
                          std::array{LoraStart::standard, LoraStart::loftq, LoraStart::pissa});

constexpr OptionSpec kLoraOptions[] = {
    {.name = "lora_rank",
     .type = OptionType::integer,
     .default_text = "16",
     .help = "rank of the adapters",
     .aliases = "r lora_r rank",
     .min = 1,
     .max = kMostRank},
    {.name = "lora_alpha",
     .type = OptionType::number,
     .default_text = "auto",
     .help = "the adapter is scaled by alpha / rank; auto: twice the rank",
     .aliases = "alpha",
     .choices = "auto"},
    {.name = "lora_dropout",
     .type = OptionType::number,
     .default_text = "0",
     .help = "dropout of the adapters' inputs",
     .min = 0,
     .max = 0.999999},
    {.name = "lora_target",
     .type = OptionType::list,
     .default_text = "all-linear",
     .help = "modules that get an adapter: all-linear, names or ends of paths, or a regular "
             "expression for whole paths",
     .aliases = "lora_target_modules target_modules"},
    {.name = "use_rslora",
     .type = OptionType::boolean,
     .default_text = "false",
     .help = "scale by alpha / sqrt(rank)"},
    {.name = "use_dora",
     .type = OptionType::boolean,
     .default_text = "false",
     .help = "learn the lengths of the rows of adapted weights as well (DoRA)",
     .aliases = "peft_use_dora"},
    {.name = "rank_pattern",
     .type = OptionType::list,
     .default_text = "",
     .help = "ranks of modules that have their own: q_proj=8,layers\\.0\\..*=32; patterns are "
             "regular expressions for paths or their ends",
     .aliases = "lora_rank_pattern"},
    {.name = "alpha_pattern",
     .type = OptionType::list,
     .default_text = "",
     .help = "the same for lora_alpha",
     .aliases = "lora_alpha_pattern"},
    {.name = "modules_to_save",
     .type = OptionType::list,
     .default_text = "",
     .help =
         "what is trained whole beside the adapters, and saved with them: embed_tokens, lm_head",
     .aliases = "lora_modules_to_save additional_target",
     .choices = "embed_tokens lm_head"},
    {.name = "lora_b_learning_rate_ratio",
     .type = OptionType::number,
     .default_text = "1",
     .help = "learning rate of the factor B as a multiple of A's (LoRA+)",
     .aliases = "loraplus_lr_ratio",
     .min = 1e-6,
     .max = 1e6},
    {.name = "lora_init",
     .type = OptionType::text,
     .default_text = "default",
     .help = "what adapters begin as: default (nothing), loftq (the best for what rounding took "
             "from the weights), pissa (the weights' principal part, which learns in their place)",
     .aliases = "init_lora_weights peft_init_lora_weights",
     .choices = kStarts.words},
    {.name = "lora_original_model",
     .type = OptionType::text,
     .default_text = "",
     .help = "for lora_init: the model before it was rounded, where model is quantised already",
     .is_path = true},
};

// Whether the run has an adapter that is there already.
bool is_loaded(const OptionSet& options) {
  return !options.text("adapter").empty();
}

void check_start_options(const OptionSet& options) {
  if (is_loaded(options)) return;  // it is not begun again
  const std::string& start = options.text("lora_init");
  const bool original = !options.text("lora_original_model").empty();
  if (start == "default" && original) {
    throw Error(ErrorKind::usage, "lora_original_model is set, but lora_init is default",
                "lora_init=loftq begins with what rounding took from the weights");
  }
  if (start == "default") return;
  if (options.boolean("use_dora")) {
    throw Error(ErrorKind::usage, fmt::format("use_dora is true, but lora_init is {}", start),
                "DoRA begins with the lengths that the rows of the weights have: leave one out");
  }
  const std::string& storage = options.text("storage");
  if (start != "loftq" || original || (storage != "keep" && storage != "f32")) return;
  throw Error(
      ErrorKind::usage, fmt::format("lora_init=loftq: nothing is rounded with storage={}", storage),
      "set storage=nf4, or lora_original_model=MODEL for a model that is quantised already");
}

// The numbers of a list of "pattern=number".
std::map<std::string, double> numbers_of(const OptionSet& options, const char* name) {
  std::map<std::string, double> numbers;
  for (const std::string& item : options.list(name)) {
    const size_t equals = item.rfind('=');
    const auto number =
        equals == std::string::npos ? std::nullopt : parse_double(item.substr(equals + 1));
    if (!number || equals == 0 || !std::isfinite(*number)) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} has \"{}\", expected PATTERN=NUMBER", options.origin(name),
                              name, item),
                  fmt::format("as in {}=q_proj=8,down_proj=32", name));
    }
    if (!numbers.emplace(item.substr(0, equals), *number).second) {
      throw Error(ErrorKind::usage, fmt::format("{}: {} has {} twice", options.origin(name), name,
                                                item.substr(0, equals)));
    }
  }
  return numbers;
}

// PEFT declares alpha an integer; whole values are written as such.
json number_json(double value) {
  const bool whole = std::abs(value) < 1e9 && value == std::floor(value);
  return whole ? json(static_cast<int64_t>(value)) : json(value);
}

json numbers_json(const ModuleNumbers& numbers, double factor) {
  json out = json::object();
  for (const auto& [pattern, number] : numbers.numbers()) {
    out[pattern] = number_json(factor * number);
  }
  return out;
}

// The modules that have an adapter, as names and ends of paths. An expression would match more in
// PEFT, which looks at activations, too: in its place stand names whose modules all have one, and
// the paths of the others.
std::vector<std::string> peft_targets(const ModuleTargets& targets,
                                      const std::set<std::string>& linears) {
  std::vector<std::string> out = targets.names();
  std::map<std::string, std::vector<std::string>> chosen;  // paths by their names
  std::set<std::string> elsewhere;                         // names of modules without adapters
  for (const std::string& path : linears) {
    if (targets.expression().empty()) break;
    const std::string name = path.substr(path.rfind('.') + 1);
    if (targets.contains(path)) {
      chosen[name].push_back(path);
    } else {
      elsewhere.insert(name);
    }
  }
  for (const auto& [name, paths] : chosen) {
    if (elsewhere.contains(name)) {
      out.insert(out.end(), paths.begin(), paths.end());
    } else {
      out.push_back(name);
    }
  }
  std::ranges::sort(out);
  return out;
}

}  // namespace

// The paths of all modules of a model, containers included, and of those that may have an adapter.
struct LoraSettings::Modules {
  explicit Modules(std::span<const WeightSpec> weights) {
    for (const WeightSpec& weight : weights) {
      if (weight.kind == WeightKind::product) continue;
      std::string path = weight.path();
      if (weight.is_block_matrix()) linears.insert(path);
      for (; all.insert(path).second && path.find('.') != std::string::npos;) {
        path.erase(path.rfind('.'));
      }
    }
  }
  std::set<std::string> all, linears;
};

std::span<const OptionSpec> lora_options() {
  return kLoraOptions;
}

LoraSettings::LoraSettings(const OptionSet& options)
    : rank_(options.integer("lora_rank")),
      alpha_(options.is_word("lora_alpha") ? 2.0 * static_cast<double>(rank_)
                                           : options.number("lora_alpha")),
      dropout_(options.number("lora_dropout")),
      use_rslora_(options.boolean("use_rslora")),
      use_dora_(options.boolean("use_dora")),
      b_learning_rate_ratio_(options.number("lora_b_learning_rate_ratio")),
      targets_(linear_targets(options, "lora_target")),
      ranks_(numbers_of(options, "rank_pattern")),
      alphas_(numbers_of(options, "alpha_pattern")),
      saved_(options.list("modules_to_save")),
      start_(is_loaded(options) ? LoraStart::standard : kStarts[options.text("lora_init")]),
      start_name_(options.text("lora_init")),
      original_model_(options.text("lora_original_model")),
      rounds_(!original_model_.empty() || options.text("storage") != "keep"),
      makes_up_for_rounding_(start_name_ != "default" && (rounds_ || is_loaded(options))) {
  check_start_options(options);
  const double b_rate = b_learning_rate_ratio_ * options.number("learning_rate");
  check_weight_decay(
      options.number("weight_decay"), b_rate,
      fmt::format("a learning rate of {:.3g} (lora_b_learning_rate_ratio) of B", b_rate));
  for (const auto& [pattern, rank] : ranks_.numbers()) {
    if (rank >= 1 && rank <= kMostRank && rank == std::floor(rank)) continue;
    throw Error(ErrorKind::usage,
                fmt::format("{}: rank_pattern has {} for {}, expected a whole number from 1 to {}",
                            options.origin("rank_pattern"), rank, pattern, kMostRank));
  }
  if (is_loaded(options)) return;
  const auto check_alpha = [&](const char* name, const std::string& has, double alpha,
                               const char* other) {
    if (alpha >= 0.0 && alpha <= kMostAlpha) return;
    throw Error(ErrorKind::usage, fmt::format("{}: {} {}, expected a number from 0 to {}{}",
                                              options.origin(name), name, has, kMostAlpha, other));
  };
  check_alpha("lora_alpha", fmt::format("is \"{}\"", options.text("lora_alpha")), alpha_,
              ", or auto");
  for (const auto& [pattern, alpha] : alphas_.numbers()) {
    check_alpha("alpha_pattern", fmt::format("has {} for {}", alpha, pattern), alpha, "");
  }
  if (alpha_ != 0.0 || !alphas_.numbers().empty()) return;
  throw Error(ErrorKind::usage,
              fmt::format("{}: lora_alpha is 0: no adapter would change anything, or learn",
                          options.origin("lora_alpha")),
              "twice the rank is usual");
}

void LoraSettings::settle(std::span<const WeightSpec> weights) {
  const Modules modules(weights);
  check_targets(modules);
  check_patterns(modules);
  check_start(weights);
  peft_targets_ = peft_targets(targets_, modules.linears);
  tied_ = !modules.all.contains("lm_head");
  if (!tied_ || std::find(saved_.begin(), saved_.end(), "lm_head") == saved_.end()) return;
  throw Error(ErrorKind::usage, "modules_to_save has lm_head, but this model's is its embedding",
              "modules_to_save=embed_tokens trains what is both");
}

void LoraSettings::check_targets(const Modules& modules) const {
  const std::string& expression = targets_.expression();
  for (const std::string& path : modules.all) {
    if (expression.empty() || !targets_.contains(path) || modules.linears.contains(path)) continue;
    throw Error(
        ErrorKind::usage,
        fmt::format("lora_target: {}, which {} matches, cannot have an adapter", path, expression),
        "adapters stand beside the linear layers of the blocks");
  }
  check_targets_exist(targets_, "lora_target", modules.linears);
}

void LoraSettings::check_patterns(const Modules& modules) const {
  for (const auto& [option, numbers] :
       {std::pair("rank_pattern", &ranks_), std::pair("alpha_pattern", &alphas_)}) {
    for (const auto& [pattern, number] : numbers->numbers()) {
      const ModuleNumbers one({{pattern, number}});
      const bool used = std::any_of(
          modules.linears.begin(), modules.linears.end(),
          [&](const std::string& path) { return targets_.contains(path) && one.find(path); });
      if (used) continue;
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} matches no module that has an adapter", option, pattern),
                  "a pattern is a regular expression for a path or its end: layers\\.0\\..*");
    }
  }
}

void LoraSettings::require_learning(const WeightSpec& weight, const LoraShape& shape) const {
  if (shape.scale != 0.0) return;
  throw Error(
      ErrorKind::usage,
      fmt::format("{} is 0 for {}: its adapter would change nothing, and learn nothing",
                  alphas_.find(weight.path()) ? "alpha_pattern" : "lora_alpha", weight.path()),
      "twice the rank is usual; lora_target names what is to have adapters");
}

void LoraSettings::check_start(std::span<const WeightSpec> weights) const {
  if (start_ == LoraStart::standard) return;
  for (const WeightSpec& weight : weights) {
    const std::optional<LoraShape> shape = shape_of(weight);
    if (!shape) continue;
    if (const int64_t saved = saved_ranks() * shape->rank; saved > kMostRank) {
      throw Error(
          ErrorKind::usage,
          fmt::format("lora_init={}: the adapter of {} is saved with twice its rank, {}, and "
                      "an adapter may have {}",
                      start_name_, weight.path(), saved, kMostRank),
          fmt::format("lower its rank to {} or less", kMostRank / saved_ranks()));
    }
    if (shape->rank <= std::min(weight.rows, weight.cols)) continue;
    throw Error(ErrorKind::usage,
                fmt::format("lora_init={}: rank {} is more than {} of {} x {} has", start_name_,
                            shape->rank, weight.path(), weight.rows, weight.cols),
                "lower lora_rank, or leave lora_init out");
  }
}

std::optional<LoraShape> LoraSettings::shape_of(const WeightSpec& weight) const {
  const std::string path = weight.path();
  if (!weight.is_block_matrix() || !targets_.contains(path)) return std::nullopt;
  const double rank = ranks_.find(path).value_or(static_cast<double>(rank_));
  const double alpha = alphas_.find(path).value_or(alpha_);
  return LoraShape{static_cast<int64_t>(rank), alpha / (use_rslora_ ? std::sqrt(rank) : rank)};
}

bool LoraSettings::trains_whole(const WeightSpec& weight) const {
  const bool matrix = weight.kind == WeightKind::embedding || weight.kind == WeightKind::linear;
  return matrix && std::find(saved_.begin(), saved_.end(), weight.module) != saved_.end();
}

json LoraSettings::to_peft() const {
  const auto ranks = static_cast<double>(saved_ranks());
  const double alphas = use_rslora_ ? std::sqrt(ranks) : ranks;
  json out = {{"peft_type", "LORA"},
              {"r", saved_ranks() * rank_},
              {"lora_alpha", number_json(alphas * alpha_)},
              {"lora_dropout", dropout_},
              {"target_modules", peft_targets_},
              {"use_rslora", use_rslora_},
              {"bias", "none"},
              {"fan_in_fan_out", false},
              {"use_dora", use_dora_},
              {"init_lora_weights", true},
              {"modules_to_save", saved_.empty() ? json() : json(saved_)},
              {"layers_to_transform", nullptr},
              {"layers_pattern", nullptr},
              {"rank_pattern", numbers_json(ranks_, ranks)},
              {"alpha_pattern", numbers_json(alphas_, alphas)}};
  // Without this, PEFT would load the embedding and leave the tied head as it was.
  if (tied_ && !saved_.empty()) out["ensure_weight_tying"] = true;
  return out;
}

}  // namespace jackscrew
