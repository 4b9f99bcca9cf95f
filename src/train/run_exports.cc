#include "train/run_exports.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/checked.h"
#include "base/directory.h"
#include "base/list_text.h"
#include "base/shell_word.h"
#include "base/text.h"
#include "conversion/convert.h"
#include "conversion/planned_source.h"
#include "conversion/write_model.h"
#include "quant/gguf_mixtures.h"
#include "report/event_log.h"
#include "report/report.h"
#include "session/adapter.h"
#include "session/plan.h"
#include "train/output_dir.h"
#include "train/run_log.h"
#include "train/run_start.h"
#include "train/saving.h"

namespace jackscrew {

namespace {

constexpr const char* kLogLine = "the log's line of the export";

ModelFormat format_of(const RunExport& wanted) {
  return wanted.gguf ? ModelFormat::gguf : ModelFormat::hf;
}

// "model-q4_k_m.gguf", "model-nf4"
fs::path path_of(const RunExport& wanted, const fs::path& output_dir) {
  const std::string storage = wanted.storage == "keep" ? "" : "-" + wanted.storage;
  return exports_directory(output_dir) /
         fmt::format("model{}{}", storage, wanted.gguf ? ".gguf" : "");
}

// Whether it is there already. In a directory may be files of others, and no model.
bool is_written(const RunExport& wanted, const fs::path& output_dir) {
  const fs::path path = path_of(wanted, output_dir);
  std::error_code unreachable;  // writing it says so, too
  return fs::exists(wanted.gguf ? path : path / "config.json", unreachable);
}

bool is_storage(std::string_view name) {
  return format_named(name) != nullptr || find_gguf_mixture(name) != nullptr;
}

// Whether it is the name of a model that runs export: model.gguf, model-q8_0.gguf, model-nf4.
bool is_export(const fs::path& path) {
  const fs::path name = path.extension() == ".gguf" ? path.stem() : path.filename();
  constexpr std::string_view kPrefix = "model-";
  const std::string text = name.string();
  return text == "model" ||
         (text.starts_with(kPrefix) && is_storage(std::string_view(text).substr(kPrefix.size())));
}

// The settings with which merge or export would write it, including those of the run that concern
// files.
std::vector<Assignment> conversion_settings(const Recipe& recipe, const RunExport& wanted,
                                            const fs::path& output_dir, bool adapter) {
  const std::string result = output_dir.string();
  std::vector<Assignment> settings;
  const auto add = [&](const char* name, const std::string& text) {
    settings.push_back({name, text, "train", {}});
  };
  add("model", adapter ? recipe.model : result);
  // While planning, the result's place may be unknown.
  if (adapter && !result.empty()) settings.push_back({"adapter", "", "train", std::vector{result}});
  add("storage", wanted.storage);
  add(wanted.gguf ? "output" : "output_dir", path_of(wanted, output_dir).string());
  for (const char* name : {"tokenizer", "chat_template", "chat_date", "max_shard_size"}) {
    if (recipe.options.was_set(name)) add(name, recipe.options.text(name));
  }
  return settings;
}

Recipe conversion_recipe(const Recipe& recipe, const RunExport& wanted, const fs::path& output_dir,
                         bool adapter) {
  OptionSet options = run_options(method_tables());
  for (const Assignment& setting : conversion_settings(recipe, wanted, output_dir, adapter)) {
    options.set(setting);
  }
  options.set("format", wanted.gguf ? "gguf" : "hf", "train");
  Recipe conversion = resolve_recipe(std::move(options), method_tables());
  conversion.threads = recipe.threads;
  conversion.isa = recipe.isa;
  return conversion;
}

std::string conversion_command(const Recipe& recipe, const RunExport& wanted,
                               const fs::path& output_dir, bool adapter) {
  std::string command = adapter ? "jackscrew merge" : "jackscrew export";
  for (const Assignment& setting : conversion_settings(recipe, wanted, output_dir, adapter)) {
    const std::string& value = setting.items ? list_item(setting.items->front()) : setting.text;
    command += fmt::format(" {}={}", setting.name, shell_word(value));
  }
  return command;
}

// What to do after a failure, when the result is there.
std::string hint_after(const Error& error, const Recipe& recipe, const RunExport& wanted,
                       const fs::path& output_dir, bool adapter) {
  const std::string again = same_command_again(recipe, output_dir);
  // The values stay what they are.
  if (error.kind() == ErrorKind::non_finite) return error.hint();
  if (dynamic_cast<const ValueOutOfRange*>(&error) != nullptr) {
    const std::string kind = wanted.gguf ? "gguf:" : "hf:";
    return fmt::format("{}, with {}{} in place of {} in export", again, kind,
                       fmt::join(ValueOutOfRange::kWide, " or " + kind), wanted.text);
  }
  return fmt::format("{}{}{}, or: {}", error.hint(), error.hint().empty() ? "" : "; ", again,
                     conversion_command(recipe, wanted, output_dir, adapter));
}

// Rethrows `error`, naming which export failed.
[[noreturn]] void fail_export(const RunExport& wanted, const Error& error) {
  throw Error(error.kind(), fmt::format("export={}: {}", wanted.text, error.what()), error.hint());
}

}  // namespace

void check_export_storages(const Recipe& recipe) {
  for (const RunExport& wanted : recipe.exports) {
    try {
      check_storage(format_of(wanted), wanted.storage);
    } catch (const Error& error) {
      fail_export(wanted, error);
    }
  }
}

void check_exports(const Recipe& recipe, const ModelFiles& files) {
  if (recipe.exports.empty()) return;
  if (recipe.random_init && makes_adapter(recipe)) {
    throw Error(ErrorKind::usage,
                "export asks for a model, but the adapter of random weights has none",
                "leave export out, or train a model that has weights, without init=random");
  }
  if (virtual_tokens(recipe) > 0) {
    throw Error(ErrorKind::usage,
                fmt::format("export={}: a soft prompt is not part of a weight and cannot be merged",
                            recipe.exports.front().text),
                "leave export out: generate, chat and eval take the result as adapter=DIR beside "
                "the model");
  }
  export_sizes(recipe, files, {});
}

FileSizes export_sizes(const Recipe& recipe, const ModelFiles& files,
                       const std::vector<SafetensorsSpec>& weights) {
  FileSizes sizes;
  for (const RunExport& wanted : recipe.exports) {
    try {
      const Recipe of_learner = with_head_of_adapter(recipe, files.config.tie_word_embeddings);
      const bool adapter = makes_adapter(of_learner);
      Recipe conversion = conversion_recipe(recipe, wanted, recipe.output_dir, adapter);
      if (!files.tokenizer) conversion.tokenizer = "bytes";
      ModelFiles result = files;
      result.source = adapter ? planned_merge(of_learner, files) : planned_result(files, weights);
      if (!adapter) result.origin = recipe.output_dir;
      const WeightSource* kept =
          adapter && files.source != nullptr ? files.source.get() : result.source.get();
      sizes.add(plan_conversion(conversion, result, {format_of(wanted), wanted.storage, kept}));
    } catch (const Error& error) {
      fail_export(wanted, error);
    }
  }
  return sizes;
}

bool lacks_exports(const Recipe& recipe, const fs::path& output_dir) {
  return std::ranges::any_of(
      recipe.exports, [&](const RunExport& wanted) { return !is_written(wanted, output_dir); });
}

bool has_exports(const fs::path& output_dir) {
  return std::ranges::any_of(
      entries_if_directory(exports_directory(output_dir)),
      [](const fs::directory_entry& entry) { return is_export(entry.path()); });
}

void remove_exports(const fs::path& output_dir) {
  const fs::path exports = exports_directory(output_dir);
  for (const fs::directory_entry& entry : entries_of(exports)) {
    const fs::path& path = entry.path();
    if (is_export(path)) {
      remove_model(path);
      warn(fmt::format("removed {}: a model of the earlier result", path.string()));
    }
    if (path.extension() == kTemporarySuffix && is_export(path.stem())) remove_tree(path);
  }
  std::error_code not_empty;
  fs::remove(exports, not_empty);
}

void log_export(const fs::path& output_dir, const WrittenExport& written) {
  write_if_possible(kLogLine, [&] {
    if (!fs::exists(output_dir / kLogName)) return;  // somebody removed it
    EventLog log(output_dir / kLogName, std::numeric_limits<int64_t>::max());
    log.write(EventKind::exported, log.last_step(),
              JsonObject()
                  .add("format", written.format)
                  .add("path", written.path.string())
                  .add("bytes", written.bytes));
    write_if_possible(kReportName, [&] { write_report(output_dir); });
  });
}

void log_earlier_exports(const Recipe& recipe, const fs::path& output_dir) {
  if (recipe.exports.empty()) return;
  write_if_possible(kLogLine, [&] {
    std::set<fs::path> logged;  // names of those of the last step: others were of another result
    int64_t last_step = 0;
    for_events(output_dir / kLogName, [&](const nlohmann::json& event) {
      const auto step = event["step"].get<int64_t>();
      if (step > last_step) logged.clear();
      last_step = std::max(last_step, step);
      const auto path = event.find("path");
      if (event["event"] != event_name(EventKind::exported) || path == event.end()) return;
      if (path->is_string()) logged.insert(fs::path(path->get<std::string>()).filename());
    });
    for (const RunExport& wanted : recipe.exports) {
      const fs::path path = path_of(wanted, output_dir);
      if (!is_written(wanted, output_dir) || logged.contains(path.filename())) continue;
      const int64_t bytes =
          wanted.gguf ? static_cast<int64_t>(fs::file_size(path)) : bytes_of_files(path);
      log_export(output_dir, {wanted.text, path, bytes, {}});
    }
  });
}

void write_exports(const Recipe& recipe, const ModelFiles& files, const fs::path& output_dir,
                   const ProgressStyle& style,
                   const std::function<void(const WrittenExport&)>& written) {
  const bool adapter = makes_adapter(recipe);
  for (const RunExport& wanted : recipe.exports) {
    if (is_written(wanted, output_dir)) continue;
    try {
      const Recipe conversion = conversion_recipe(recipe, wanted, output_dir, adapter);
      ModelFiles base = files;
      if (!adapter) {
        ModelFiles result = open_model(output_dir.string());
        base.source = std::move(result.source);
        base.generation_config = std::move(result.generation_config);
        base.origin = output_dir.string();
      }
      ModelOutput output(conversion, "train");
      const ConvertedModel model(conversion, std::move(base));
      const ConversionReport report = write_converted(conversion, model, output, style);
      output.commit();
      written({wanted.text, output.target(), report.bytes, report.notes});
    } catch (const Error& error) {
      // What is wrong with a file may be wrong with one of the result.
      const bool may_be_damaged = error.kind() == ErrorKind::model && !is_unreadable(error);
      const std::string complete =
          may_be_damaged ? std::string()
                         : fmt::format("; the result is complete in {}", output_dir.string());
      throw Error(error.kind(), fmt::format("export={}: {}{}", wanted.text, error.what(), complete),
                  hint_after(error, recipe, wanted, output_dir, adapter));
    }
  }
}

void write_run_exports(const Recipe& recipe, const ModelFiles& files, const fs::path& output_dir,
                       const TrainConsole& console) {
  ProgressStyle style = console.style;
  style.check = [&] {
    if (console.stop_requested()) throw Error(ErrorKind::interrupted, "stopped");
  };
  write_exports(recipe, files, output_dir, style, [&](const WrittenExport& written) {
    say(console, fmt::format("export    {}: {}", one_line(written.path.string()),
                             human_bytes(written.bytes)));
    for (const std::string& note : written.notes) say(console, "          " + one_line(note));
    log_export(output_dir, written);
  });
}

}  // namespace jackscrew
