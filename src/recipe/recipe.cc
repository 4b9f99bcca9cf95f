#include "recipe/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "learners/learner.h"
#include "products/product.h"
#include "recipe/foreign_options.h"
#include "recipe/foreign_recipe.h"
#include "recipe/recipe_file.h"

namespace jackscrew {

namespace {

std::vector<Assignment> settings_of(const Preset& preset) {
  return split_settings(preset.settings, method_origin(preset.name));
}

std::string setting_of(const Preset& preset, std::string_view name) {
  for (const Assignment& setting : settings_of(preset)) {
    if (setting.name == name) return setting.text;
  }
  return {};
}

[[noreturn]] void refuse_name(const OptionSet& options, const char* option,
                              const std::vector<std::string>& known) {
  const std::string& value = options.text(option);
  const auto nearest = nearest_name(value, known);
  throw Error(ErrorKind::usage,
              fmt::format("{}: unknown {} \"{}\", expected one of {}", options.origin(option),
                          option, value, fmt::join(known, ", ")),
              nearest ? fmt::format("did you mean {}?", *nearest) : std::string());
}

// An explicit `auto` is the same as leaving the learning rate out. If the recipe sets another
// learner than the method's, the learning rate is that of the first preset with that learner.
void resolve_learning_rate(OptionSet& options, const Preset& preset) {
  if (!options.is_word("learning_rate")) return;
  const std::string& learner = options.text("learner");
  const Preset* source = &preset;
  if (setting_of(preset, "learner") != learner) {
    for (const Preset& other : presets()) {
      if (setting_of(other, "learner") == learner) {
        source = &other;
        break;
      }
    }
  }
  const std::string value = setting_of(*source, "learning_rate");
  if (value.empty()) {
    throw Error(ErrorKind::usage,
                fmt::format("method {} has no learning rate of its own", source->name),
                "set learning_rate");
  }
  options.set("learning_rate", value, method_origin(source->name));
}

// Other programs say true and false of this option; no checkpoint is called so.
void resolve_resume(OptionSet& options) {
  const std::string given = lower_case(options.text("resume"));
  if (given != "true" && given != "false") return;
  options.set("resume", given == "true" ? "auto" : "never", options.origin("resume"));
}

void apply_preset(OptionSet& options) {
  const Preset* preset = find_preset(options.text("method"));
  if (preset == nullptr) {
    const std::string& name = options.text("method");
    if (const char* hint = foreign_method(name)) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: there is no method \"{}\"", options.origin("method"), name),
                  hint);
    }
    std::vector<std::string> names;
    for (const Preset& known : presets()) names.emplace_back(known.name);
    refuse_name(options, "method", names);
  }
  const std::string origin = method_origin(preset->name);
  if (options.text("learner").empty()) {
    options.set("learner", setting_of(*preset, "learner"), origin);
  }
  resolve_learning_rate(options, *preset);
  for (const Assignment& setting : settings_of(*preset)) {
    options.imply(setting.name, setting.text, setting.origin);
  }
}

void check_learner(const OptionSet& options, std::span<const MethodTable> tables) {
  std::vector<std::string> names;
  for (const MethodTable& table : tables) {
    if (table.choice == std::string_view("learner")) names.emplace_back(table.name);
  }
  if (std::find(names.begin(), names.end(), options.text("learner")) == names.end()) {
    refuse_name(options, "learner", names);
  }
}

// The tables of learners and products that are not in use.
std::vector<MethodTable> unused_tables(const OptionSet& options,
                                       std::span<const MethodTable> tables) {
  std::vector<MethodTable> unused;
  for (const MethodTable& table : tables) {
    if (table.name != options.text(table.choice)) unused.push_back(table);
  }
  return unused;
}

// Refuses options of such learners (`choice`) or products, which would silently be ignored.
// how_to(table) says in a hint how they would be used.
template <class HowTo>
void refuse_unused(const OptionSet& options, std::span<const MethodTable> tables,
                   std::string_view choice, const HowTo& how_to) {
  for (const MethodTable& table : unused_tables(options, tables)) {
    if (table.choice != choice) continue;
    for (const OptionSpec& spec : table.options) {
      if (!options.was_set(spec.name)) continue;
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} is an option of {} {}, but this run has {} {}",
                              options.origin(spec.name), spec.name, choice, table.name, choice,
                              options.text(choice)),
                  fmt::format("leave {} out{}", spec.name, how_to(table)));
    }
  }
}

std::string or_set(const MethodTable& table) {
  // A learner alone would go without what its method sets beside it, such as storage.
  const bool is_method =
      table.choice == std::string_view("learner") && find_preset(table.name) != nullptr;
  return fmt::format(", or set {}={}", is_method ? "method" : table.choice, table.name);
}

[[noreturn]] void contradiction(const std::string& what, const std::string& hint) {
  throw Error(ErrorKind::usage, what, hint);
}

// Contradictions between options of different tables.
void check_consistency(const Recipe& r) {
  if (!r.adapter_weights.empty() && r.adapter_weights.size() != r.adapters.size()) {
    contradiction(fmt::format("{} for {}", counted(std::ssize(r.adapter_weights), "adapter weight"),
                              counted(std::ssize(r.adapters), "adapter")),
                  "adapter_weight has one number for each adapter, in its order");
  }
  if (r.eval_steps > 0 && !r.has_evaluation()) {
    contradiction(
        fmt::format("eval_steps is {}, but there is nothing to evaluate on", r.eval_steps),
        "set eval_data or val_size");
  }
  if (r.fused_update && r.max_grad_norm > 0 && !r.clip_each_weight) {
    contradiction(
        "with update=fused weights are updated before the norm of all gradients is known",
        "set max_grad_norm_of=weight to clip each weight's by itself, or max_grad_norm=0");
  }
  if (r.clip_each_weight && !r.fused_update) {
    contradiction(fmt::format("{}: max_grad_norm_of=weight is of update=fused, but update is after",
                              r.options.origin("max_grad_norm_of")),
                  "set max_grad_norm_of=model, or update=fused");
  }
  const char* watcher = r.watch.early_stopping_patience > 0 ? "early_stopping_patience"
                        : r.load_best_model_at_end          ? "load_best_model_at_end"
                                                            : nullptr;
  if (watcher != nullptr && !r.has_evaluation()) {
    contradiction(fmt::format("{} is set, but nothing to evaluate on", watcher),
                  "set eval_data or val_size");
  }
  if (watcher != nullptr && r.eval_steps == 0) {
    contradiction(fmt::format("{} is set, but the only evaluation is at the end", watcher),
                  "set eval_steps");
  }
  if (r.pipeline_stages == 1 && r.stage_split.size() > 1) {
    contradiction(
        fmt::format("stage_split has {} stages, but pipeline_stages is 1", r.stage_split.size()),
        fmt::format("set pipeline_stages={}, or leave stage_split out", r.stage_split.size()));
  }
  if (r.stride > r.sequence_len) {
    contradiction(fmt::format("stride {} is more than sequence_len {}", r.stride, r.sequence_len),
                  "tokens between the windows would not be scored");
  }
}

void read_settings(Recipe& recipe, const OptionSet& options) {
  recipe.ModelSettings::read(options);
  recipe.DataSettings::read(options);
  recipe.RecordSettings::read(options);
  recipe.RankSettings::read(options);
  recipe.MethodSettings::read(options);
  recipe.ScheduleSettings::read(options);
  recipe.MachineSettings::read(options);
  recipe.OutputSettings::read(options);
  recipe.ConversionSettings::read(options);
  recipe.QuantiseSettings::read(options);
  recipe.GenerationSettings::read(options);
  recipe.CallSettings::read(options);
}

// A key that appears twice in one file is a mistake, not an override.
void set_from_file(OptionSet& options, const std::string& path) {
  const RecipeReport report = report_recipe(read_recipe_entries(path), options);
  if (report.is_foreign) {
    const std::string whose = report.program_hint();
    throw Error(ErrorKind::usage, report.summary(path),
                fmt::format("{}{}`jackscrew config validate {}` says what each key is here", whose,
                            whose.empty() ? "" : "; ", path));
  }
  std::map<std::string, std::string> first_origin;
  for (const Assignment& assignment : read_recipe_file(path)) {
    const char* name = options.at(assignment.name, assignment.origin).spec.name;
    const auto [first, is_new] = first_origin.emplace(name, assignment.origin);
    if (!is_new) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} is set a second time", assignment.origin, name),
                  fmt::format("the first is at {}", first->second));
    }
    options.set(assignment);
  }
}

// Takes back what a file set together with its method: the options that its preset or that of the
// new one sets, and those of learners and products that are then not in use. Returns those that
// were chosen, not the preset's nor defaults, as settings.
std::vector<std::string> leave_out_method(OptionSet& options, const Preset& of_file,
                                          const Preset& now, std::span<const MethodTable> tables) {
  OptionSet plain = run_options(tables);
  plain.set("method", of_file.name, kCommandLine);
  apply_preset(plain);
  std::vector<std::string> chosen;
  const auto leave_out = [&](const char* name) {
    const OptionValue value = options.at(name, of_file.name);
    if (!value.explicitly_set || value.origin == kCommandLine) return;
    options.forget(name);
    if (!same_value(value, plain.at(name, of_file.name))) {
      chosen.push_back(fmt::format("{}={}", name, value.text));
    }
  };
  for (const Preset* preset : {&of_file, &now}) {
    for (const Assignment& setting : settings_of(*preset)) leave_out(setting.name.c_str());
  }
  if (!options.was_set("learner")) {
    options.set("learner", setting_of(now, "learner"), method_origin(now.name));
  }
  for (const MethodTable& table : unused_tables(options, tables)) {
    for (const OptionSpec& spec : table.options) leave_out(spec.name);
  }
  return chosen;
}

void pass_over(OptionSet& options, const ReadsOption& reads) {
  std::vector<std::string> unread;
  for (const OptionValue& option : options.values()) {
    if (option.explicitly_set && !reads(options, option)) unread.emplace_back(option.spec.name);
  }
  for (const std::string& name : unread) options.forget(name);
}

// Two options say what is held out: one from the command line takes the place of the file's other.
void choose_held_out(OptionSet& options) {
  for (const auto& [name, other] :
       {std::pair("eval_data", "val_size"), std::pair("val_size", "eval_data")}) {
    const bool is_chosen = options.origin(name) == kCommandLine && options.is_changed(name);
    if (is_chosen && options.origin(other) != kCommandLine) options.forget(other);
  }
}

// Where a shell has not put the home directory for ~, a directory of that name would be meant.
void refuse_tilde(const OptionSet& options) {
  for (const OptionValue& option : options.values()) {
    if (!option.spec.is_path) continue;
    for (const std::string& path : option.parts()) {
      if (path != "~" && !path.starts_with("~/")) continue;
      throw Error(
          ErrorKind::usage,
          fmt::format("{}: {}: ~ does not stand for the home directory here, only in a shell",
                      option.origin, path),
          "write the path in full");
    }
  }
}

}  // namespace

std::span<const MethodTable> method_tables() {
  static const std::vector<MethodTable> kTables = [] {
    std::vector<MethodTable> tables;
    for (const LearnerEntry& entry : all_learners()) {
      tables.push_back({"learner", entry.name, entry.options});
    }
    for (const ProductEntry& entry : all_products()) {
      tables.push_back({"product", entry.name, entry.options});
    }
    return tables;
  }();
  return kTables;
}

std::string method_title(const MethodTable& table) {
  std::string choice = table.choice;
  choice[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(choice[0])));
  return fmt::format("{} {}", choice, table.name);
}

OptionSet run_options(std::span<const MethodTable> tables) {
  OptionSet options;
  for (const OptionTable& table : run_option_tables()) options.add(table);
  for (const MethodTable& table : tables) options.add({method_title(table), table.options});
  options.explain(foreign_options());
  return options;
}

Recipe resolve_recipe(OptionSet options, std::span<const MethodTable> tables) {
  Recipe recipe;
  apply_preset(options);
  check_learner(options, tables);
  refuse_tilde(options);
  for (const MethodTable& table : unused_tables(options, tables)) {
    recipe.skipped_titles.push_back(method_title(table));
  }
  // The learner of an adapter is not known before its files are read.
  if (options.list("adapter").empty()) refuse_unused(options, tables, "learner", or_set);
  refuse_unused(options, tables, "product", or_set);
  resolve_resume(options);
  read_settings(recipe, options);
  recipe.options = std::move(options);
  check_consistency(recipe);
  return recipe;
}

void refuse_other_learners(const OptionSet& options) {
  refuse_unused(options, method_tables(), "learner", [&](const MethodTable&) {
    return fmt::format(": the adapter has learner {}", options.text("learner"));
  });
}

void check_method(const Recipe& recipe) {
  if (recipe.adapter.empty()) find_learner(recipe.learner).make(recipe.options);
  const ProductEntry& product = find_product(recipe.product);
  if (product.check != nullptr) product.check(recipe.options);
}

bool is_same_product(const std::string& a, const std::string& b) {
  return &find_product(a) == &find_product(b);  // auto is one of the others
}

void choose_method(OptionSet& options, const std::string& method, const std::string& origin) {
  std::vector<OptionSpec> of_preset;
  for (const OptionValue& value : options.values()) {
    if (comes_with_method(value)) of_preset.push_back(value.spec);
  }
  for (const OptionSpec& spec : of_preset) {
    if (options.was_set(spec.name)) {
      options.set(spec.name, spec.default_text, origin);  // learner and learning_rate
    } else {
      options.imply(spec.name, spec.default_text, origin);
    }
  }
  options.set("method", method, origin);
}

Recipe with_method(Recipe recipe, const std::string& method, const std::string& origin) {
  OptionSet& options = recipe.options;
  const std::string preset = method_origin(options.text("method"));
  if (options.was_set("method") || options.origin("learner") != preset) return recipe;
  choose_method(options, method, origin);
  Recipe other = resolve_recipe(std::move(options), method_tables());
  other.operands = std::move(recipe.operands);
  other.file = std::move(recipe.file);
  other.python_environments = std::move(recipe.python_environments);
  return other;
}

Recipe read_recipe(std::span<const std::string> arguments, std::span<const MethodTable> tables,
                   const ReadsOption& reads) {
  OptionSet options = run_options(tables);
  CommandLine line = parse_command_line(arguments, options);
  std::string name_of_file;
  const auto file = std::find_if(line.operands.begin(), line.operands.end(),
                                 [](const auto& word) { return is_recipe_name(word); });
  if (file != line.operands.end()) {
    set_from_file(options, *file);
    name_of_file = *file;
    line.operands.erase(file);
  }
  const Preset* of_file = options.was_set("method") ? find_preset(options.text("method")) : nullptr;
  for (const Assignment& assignment : line.assignments) options.set(assignment);
  const Preset* now = find_preset(options.text("method"));
  std::vector<std::string> left_out;
  if (of_file != nullptr && now != nullptr && of_file != now) {
    left_out = leave_out_method(options, *of_file, *now, tables);
  }
  if (reads && !options.boolean("print_config")) pass_over(options, reads);
  choose_held_out(options);
  Recipe recipe = resolve_recipe(std::move(options), tables);
  recipe.operands = std::move(line.operands);
  recipe.file = std::move(name_of_file);
  if (!left_out.empty()) {
    recipe.left_out = fmt::format("method={} takes the place of the file's {}, and of its {}",
                                  now->name, of_file->name, fmt::join(left_out, ", "));
  }
  return recipe;
}

}  // namespace jackscrew
