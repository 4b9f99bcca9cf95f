#include "recipe/recipe.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "data/dataset.h"
#include "kernels/device.h"
#include "learners/learner.h"
#include "products/product.h"
#include "recipe/foreign_options.h"
#include "recipe/foreign_recipe.h"
#include "recipe/recipe_file.h"
#include "recipe/record_options.h"
#include "text/chat/chat_template.h"

namespace jackscrew {

namespace {

std::vector<Assignment> settings_of(const Preset& preset) {
  return split_settings(preset.settings, fmt::format("method {}", preset.name));
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
  options.set("learning_rate", value, fmt::format("method {}", source->name));
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
  const std::string origin = fmt::format("method {}", preset->name);
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

// Refuses options of learners and products that are not in use, which would silently be ignored.
// Returns the titles of their tables.
std::vector<std::string> skip_unused(const OptionSet& options,
                                     std::span<const MethodTable> tables) {
  std::vector<std::string> skipped_titles;
  for (const MethodTable& table : tables) {
    const std::string& chosen = options.text(table.choice);
    if (table.name == chosen) continue;
    skipped_titles.push_back(method_title(table));
    for (const OptionSpec& spec : table.options) {
      if (!options.was_set(spec.name)) continue;
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} is an option of {} {}, but this run has {} {}",
                              options.origin(spec.name), spec.name, table.choice, table.name,
                              table.choice, chosen),
                  fmt::format("leave {} out, or set {}={}", spec.name, table.choice, table.name));
    }
  }
  return skipped_titles;
}

[[noreturn]] void contradiction(const std::string& what, const std::string& hint) {
  throw Error(ErrorKind::usage, what, hint);
}

void check_consistency(const Recipe& r) {
  if (r.val_size > 0 && !r.eval_data.empty()) {
    contradiction("both eval_data and val_size are set", "keep one: they name the same thing");
  }
  if (!r.data_weights.empty() && r.data_weights.size() != r.data.size()) {
    contradiction(fmt::format("{} for {}", counted(std::ssize(r.data_weights), "data weight"),
                              counted(std::ssize(r.data), "data set")),
                  "data_weights has one number for each of data, in its order");
  }
  if (!r.adapter_weights.empty() && r.adapter_weights.size() != r.adapters.size()) {
    contradiction(fmt::format("{} for {}", counted(std::ssize(r.adapter_weights), "adapter weight"),
                              counted(std::ssize(r.adapters), "adapter")),
                  "adapter_weight has one number for each adapter, in its order");
  }
  if (r.val_size > 1 && r.val_size != static_cast<double>(static_cast<int64_t>(r.val_size))) {
    contradiction(
        fmt::format("val_size is {}, neither a share nor a number of records", r.val_size),
        "use a value below 1 or a whole number");
  }
  if (r.eval_steps > 0 && r.eval_data.empty() && r.val_size == 0) {
    contradiction(
        fmt::format("eval_steps is {}, but there is nothing to evaluate on", r.eval_steps),
        "set eval_data or val_size");
  }
  if (r.max_steps == 0 && r.num_train_epochs <= 0) {
    contradiction("max_steps and num_train_epochs are both 0", "set one of them");
  }
  if (r.max_steps > 0 && r.warmup_steps.value_or(0) > r.max_steps) {
    contradiction(
        fmt::format("warmup_steps {} is more than max_steps {}", *r.warmup_steps, r.max_steps),
        "the learning rate would never reach its peak");
  }
  for (const auto& [name, beta] :
       {std::pair{"adam_beta1", r.adam_beta1}, std::pair{"adam_beta2", r.adam_beta2}}) {
    if (beta >= 1) contradiction(fmt::format("{} is {}, must be below 1", name, beta), "");
  }
  if (r.fused_update && r.max_grad_norm > 0 && !r.clip_each_weight) {
    contradiction(
        "with update=fused weights are updated before the norm of all gradients is known",
        "set max_grad_norm_of=weight to clip each weight's by itself, or max_grad_norm=0");
  }
  if (r.clip_each_weight && !r.fused_update) {
    contradiction("max_grad_norm_of=weight is of update=fused", "set update=fused");
  }
  const char* watcher = r.watch.early_stopping_patience > 0 ? "early_stopping_patience"
                        : r.load_best_model_at_end          ? "load_best_model_at_end"
                                                            : nullptr;
  if (watcher != nullptr && r.eval_data.empty() && r.val_size == 0) {
    contradiction(fmt::format("{} is set, but nothing to evaluate on", watcher),
                  "set eval_data or val_size");
  }
  if (watcher != nullptr && r.eval_steps == 0) {
    contradiction(fmt::format("{} is set, but the only evaluation is at the end", watcher),
                  "set eval_steps");
  }
  if (r.top_p <= 0) contradiction("top_p is 0, no token could be sampled", "1 means all tokens");
  if (r.stride > r.sequence_len) {
    contradiction(fmt::format("stride {} is more than sequence_len {}", r.stride, r.sequence_len),
                  "tokens between the windows would not be scored");
  }
  if (r.random_init && !r.adapter.empty()) {
    contradiction("init is random, but an adapter is given", "an adapter needs its own model");
  }
  if (r.checkpoint_dtype != "f32" && !r.random_init) {
    contradiction("checkpoint_dtype is of weights without a file, and init is not random",
                  "storage sets what weights from a file are kept in");
  }
}

std::optional<int64_t> integer_or_auto(const OptionSet& options, const char* name) {
  if (options.is_word(name)) return std::nullopt;
  return options.integer(name);
}

std::optional<int64_t> bytes_or_auto(const OptionSet& options, const char* name) {
  if (options.is_word(name)) return std::nullopt;
  return options.bytes(name);
}

// The numbers of a list, each from `least` to `most`.
std::vector<double> numbers_of(const OptionSet& options, const char* name, double least,
                               double most, const char* hint) {
  std::vector<double> numbers;
  for (const std::string& text : options.list(name)) {
    const auto number = parse_double(text);
    if (!number || !(*number >= least && *number <= most)) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} has \"{}\", expected numbers from {} to {}",
                              options.origin(name), name, text, least, most),
                  hint);
    }
    numbers.push_back(*number);
  }
  return numbers;
}

// How often the examples of each data set are seen in an epoch. More than 1000 times is more likely
// a mistake than intended.
std::vector<double> data_weights(const OptionSet& options) {
  return numbers_of(options, "data_weights", 0, 1000,
                    "2: each example twice in an epoch, 0.5: a half of them");
}

// A negative weight subtracts what an adapter learned.
std::vector<double> adapter_weights(const OptionSet& options) {
  return numbers_of(options, "adapter_weight", -1000, 1000,
                    "1: all of what the adapter changes, 0.5: half of it");
}

std::vector<int64_t> sizes(const OptionSet& options, const char* name) {
  std::vector<int64_t> sizes;
  for (const std::string& text : options.list(name)) {
    const auto bytes = parse_bytes(text);
    if (!bytes || *bytes < 1) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} has \"{}\", expected sizes with a unit, such as 16GiB",
                              options.origin(name), name, text));
    }
    sizes.push_back(*bytes);
  }
  return sizes;
}

std::vector<RunExport> run_exports(const OptionSet& options) {
  const std::vector<std::string> storages = split_words(options.find("storage")->spec.choices);
  std::vector<RunExport> exports;
  for (const std::string& text : options.list("export")) {
    const size_t colon = text.find(':');
    const std::string files = text.substr(0, colon);
    const std::string storage = colon == std::string::npos ? "keep" : text.substr(colon + 1);
    const bool known = std::ranges::find(storages, storage) != storages.end();
    if (!known || (files != "hf" && files != "gguf")) {
      throw Error(
          ErrorKind::usage,
          fmt::format("{}: export has \"{}\", expected hf or gguf and, behind a colon, what "
                      "storage is of the files",
                      options.origin("export"), text),
          "gguf:q4_k_m, hf:bf16, or hf for weights as they are stored");
    }
    const RunExport wanted{text, files == "gguf", storage};
    const auto same = [&](const RunExport& other) {
      return other.gguf == wanted.gguf && other.storage == wanted.storage;
    };
    if (std::ranges::any_of(exports, same)) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: export has \"{}\" twice", options.origin("export"), text));
    }
    exports.push_back(wanted);
  }
  return exports;
}

WeightPlace weight_place(const std::string& name) {
  if (name == "memory") return WeightPlace::memory;
  return name == "mmap" ? WeightPlace::mmap : WeightPlace::automatic;
}

LongRecord long_record(const std::string& name) {
  if (name == "drop") return LongRecord::drop;
  return name == "error" ? LongRecord::error : LongRecord::truncate;
}

void fill(Recipe& r, const OptionSet& o) {
  r.model = o.text("model");
  r.adapters = o.list("adapter");
  if (!r.adapters.empty()) r.adapter = r.adapters.front();
  r.random_init = o.text("init") == "random";
  r.checkpoint_dtype = o.text("checkpoint_dtype");
  r.tokenizer = o.text("tokenizer");
  r.chat_template = o.text("chat_template");
  r.chat_date = parse_chat_date(o.text("chat_date"));
  r.data = o.list("data");
  r.data_weights = data_weights(o);
  r.eval_data = o.list("eval_data");
  r.val_size = o.number("val_size");
  r.max_samples = o.integer("max_samples");
  r.long_record = long_record(o.text("excess_length_strategy"));
  r.sequence_len = o.integer("sequence_len");
  r.packing = o.boolean("packing");
  r.train_on_inputs = o.boolean("train_on_inputs");
  r.fields = record_fields(o);
  r.skip_bad_records = o.text("on_bad_record") == "skip";
  r.method = o.text("method");
  r.storage = o.text("storage");
  r.weights = weight_place(o.text("weights"));
  r.product = o.text("product");
  r.product_exclude = o.list("product_exclude");
  r.learner = o.text("learner");
  r.optimizer = o.text("optimizer");
  if (!o.is_word("gradient_checkpointing")) {
    r.gradient_checkpointing = o.boolean("gradient_checkpointing");
  }
  r.micro_batch_size = o.integer("micro_batch_size");
  r.gradient_accumulation_steps = o.integer("gradient_accumulation_steps");
  r.data_parallel = integer_or_auto(o, "data_parallel").value_or(0);
  r.pipeline_stages = o.integer("pipeline_stages");
  r.stage_split = o.whole_numbers("stage_split");
  r.rank_devices = o.list("rank_devices");
  for (const std::string& device : r.rank_devices) check_device_name(device);
  r.rank_device_memory = sizes(o, "rank_device_memory");
  r.communication_timeout = std::chrono::duration<double>(o.number("communication_timeout"));
  r.max_steps = o.integer("max_steps");
  r.num_train_epochs = o.number("num_train_epochs");
  r.learning_rate = o.number("learning_rate");
  r.lr_schedule = parse_schedule(o.text("lr_scheduler_type"));
  r.warmup_ratio = o.number("warmup_ratio");
  r.warmup_steps = integer_or_auto(o, "warmup_steps");
  r.weight_decay.matrices = o.number("weight_decay");
  r.weight_decay.vectors = o.text("weight_decay_target") == "all" ? r.weight_decay.matrices : 0.0;
  r.max_grad_norm = o.number("max_grad_norm");
  r.clip_each_weight = o.text("max_grad_norm_of") == "weight";
  r.fused_update = o.text("update") == "fused";
  r.adam_beta1 = o.number("adam_beta1");
  r.adam_beta2 = o.number("adam_beta2");
  r.adam_epsilon = o.number("adam_epsilon");
  r.seed = static_cast<uint64_t>(o.integer("seed"));
  r.device = o.text("device");
  check_device_name(r.device);
  const int64_t threads = integer_or_auto(o, "threads").value_or(0);
  r.threads = threads > 0 ? narrow<int>(threads) : omp_get_num_procs();
  r.isa = o.text("isa");
  r.attention = o.text("attention") == "cudnn" ? AttentionLibrary::cudnn : AttentionLibrary::own;
  r.device_memory = bytes_or_auto(o, "device_memory");
  r.host_memory = bytes_or_auto(o, "host_memory");
  r.output_dir = o.text("output_dir");
  r.overwrite = o.boolean("overwrite");
  r.logging_steps = o.integer("logging_steps");
  r.eval_steps = o.integer("eval_steps");
  r.save_steps = o.integer("save_steps");
  r.save_total_limit = o.integer("save_total_limit");
  r.resume = o.text("resume");
  r.report_samples = o.integer("report_samples");
  r.load_best_model_at_end = o.boolean("load_best_model_at_end");
  r.watch = {o.integer("early_stopping_patience"), o.number("loss_watchdog_threshold"),
             o.integer("loss_watchdog_patience")};
  r.stride = o.integer("stride");
  r.exports = run_exports(o);
  r.format = o.text("format");
  r.adapter_weights = adapter_weights(o);
  r.max_shard_bytes = o.bytes("max_shard_size");
  if (!o.is_word("max_merge_loss")) r.max_merge_loss = o.number("max_merge_loss");
  r.prompt = o.text("prompt");
  r.system = o.text("system");
  r.context = o.integer("context");
  r.max_new_tokens = o.integer("max_new_tokens");
  r.temperature = o.number("temperature");
  r.top_k = o.integer("top_k");
  r.top_p = o.number("top_p");
  r.output = o.text("output");
  r.json = o.boolean("json");
  r.quiet = o.boolean("quiet");
  r.fit = o.boolean("fit");
  r.ranks = narrow<int>(o.integer("ranks"));
  r.verbose = o.boolean("verbose");
  r.print_config = o.boolean("print_config");
}

// A key that appears twice in one file is a mistake, not an override.
void set_from_file(OptionSet& options, const std::string& path) {
  const RecipeReport report = report_recipe(read_recipe_entries(path), options);
  if (report.is_foreign) {
    const std::string whose =
        report.program.empty() ? "" : fmt::format("it looks like a recipe of {}; ", report.program);
    throw Error(
        ErrorKind::usage, report.summary(path),
        fmt::format("{}`jackscrew config validate {}` says what each key is here", whose, path));
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
  recipe.skipped_titles = skip_unused(options, tables);
  fill(recipe, options);
  check_consistency(recipe);
  recipe.options = std::move(options);
  return recipe;
}

Recipe with_method(Recipe recipe, const std::string& method, const std::string& origin) {
  OptionSet& options = recipe.options;
  const std::string preset = fmt::format("method {}", options.text("method"));
  if (options.was_set("method") || options.origin("learner") != preset) return recipe;
  options.set("method", method, origin);
  options.set("learner", "", origin);
  if (options.origin("learning_rate") == preset) options.set("learning_rate", "auto", origin);
  Recipe other = resolve_recipe(std::move(options), method_tables());
  other.operands = std::move(recipe.operands);
  other.python_environments = std::move(recipe.python_environments);
  return other;
}

Recipe read_recipe(std::span<const std::string> arguments, std::span<const MethodTable> tables) {
  OptionSet options = run_options(tables);
  CommandLine line = parse_command_line(arguments, options);
  const auto file = std::find_if(line.operands.begin(), line.operands.end(),
                                 [](const auto& word) { return is_recipe_name(word); });
  if (file != line.operands.end()) {
    set_from_file(options, *file);
    line.operands.erase(file);
  }
  for (const Assignment& assignment : line.assignments) options.set(assignment);
  Recipe recipe = resolve_recipe(std::move(options), tables);
  recipe.operands = std::move(line.operands);
  return recipe;
}

}  // namespace jackscrew
