// jackscrew merge and export: write a model, with or without adapters, as files for other programs.
#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/interruption.h"
#include "conversion/compare.h"
#include "conversion/convert.h"
#include "session/adapter.h"
#include "session/evaluate.h"
#include "session/loading.h"
#include "session/plan.h"

namespace jackscrew {

namespace {

// Losses on eval_data, measured before the output gets its final name.
struct ConversionLoss {
  std::optional<double> base;  // without the adapters, if there are any
  Comparison written;          // compared with the model and its adapters before conversion
};

// The recipe with which a model is measured.
Recipe measuring(Recipe recipe, const ConvertedModel& model) {
  recipe.storage = "keep";  // the option describes what is written
  settle_lengths(recipe, model.base);
  return recipe;
}

// What the written model is compared with. A single whole adapter is applied beside its model, as
// in training; for several adapters, or a fraction of one, it is their sum in f32.
struct Reference {
  Recipe recipe;
  const ModelFiles& files;
};

Reference reference_of(const Recipe& recipe, const ConvertedModel& model) {
  const bool beside = model.adapters.size() == 1 && model.adapters[0].weight == 1.0;
  if (beside) return {with_adapter_options(recipe), model.base};
  return {without_adapters(recipe), model.result()};
}

ConversionLoss measure(const Recipe& recipe, const ConvertedModel& model, const Dataset& dataset,
                       const fs::path& written, const ProgressStyle& style) {
  const Recipe alone = without_adapters(recipe);
  const SessionUse use = comparison_use(recipe.sequence_len);
  ConversionLoss loss;
  if (!model.adapters.empty()) {
    const SessionUse scoring{.training = false,
                             .tokens = recipe.sequence_len,
                             .max_positions = recipe.sequence_len,
                             .kv_tokens = 0,
                             .logits_rows = 0};
    const auto session = open_session(alone, model.base, scoring, style);
    loss.base = evaluate(*session, dataset, recipe.sequence_len, style).loss;
  }
  const ModelFiles files = open_model(written.string());
  const Reference of = reference_of(recipe, model);
  require_room_for_both({of.recipe, of.files}, {alone, files}, use);
  const auto reference = open_session(of.recipe, of.files, use, style);
  const auto session = open_session(alone, files, use, style);
  loss.written = compare_sessions({*reference, model.name()}, {*session, kWrittenModel}, dataset,
                                  recipe.threads, style);
  return loss;
}

void refuse_loss(const Recipe& recipe, const ConversionLoss& loss) {
  const double more = loss.written.loss - loss.written.reference_loss;
  if (!recipe.max_merge_loss || more <= *recipe.max_merge_loss) return;
  throw Error(ErrorKind::generic,
              fmt::format("the written model's loss is {:.4f}, {:.4f} above {:.4f} of what it is "
                          "made of: more than max_merge_loss, so nothing was kept",
                          loss.written.loss, more, loss.written.reference_loss),
              "a storage of more bits loses less; storage=f32 loses nothing");
}

void print_loss(const ConvertedModel& model, const ConversionLoss& loss) {
  const auto line = [](const char* what, double value) {
    fmt::print("  {:<16}loss {:.4f}\n", what, value);
  };
  if (loss.base) line("base", *loss.base);
  line(model.adapters.empty()       ? "model"
       : model.adapters.size() == 1 ? "base + adapter"
                                    : "base + adapters",
       loss.written.reference_loss);
  fmt::print("  {:<16}loss {:.4f}  KL {:.2e}  same likeliest token {:.2f} %  ({})\n", "written",
             loss.written.loss, loss.written.divergence, 100.0 * loss.written.agreement,
             counted(loss.written.tokens, "token"));
}

void print_report(const ModelOutput& output, const ConversionReport& report) {
  std::string storage;
  for (const auto& [name, share] : report.formats) {
    storage += fmt::format("{}{} in {}", storage.empty() ? "" : ", ",
                           counted(share.tensors, "tensor"), name);
  }
  const std::string mixture = report.file_type.empty() ? "" : report.file_type + ": ";
  fmt::print("wrote {}: {} ({}{})\n", one_line(output.target().string()), human_bytes(report.bytes),
             mixture, storage);
  for (const std::string& note : report.notes) fmt::print("  {}\n", one_line(note));
}

void print_json(const ModelOutput& output, const ConversionReport& report,
                const std::optional<ConversionLoss>& loss) {
  JsonObject json;
  json.add("output", output.target().string()).merge(report.to_json());
  if (loss) {
    if (loss->base) json.add("base_loss", *loss->base);
    json.merge(loss->written.to_json());
  }
  fmt::print("{}\n", json.text());
}

// Reports what was written and, if it was measured, how much that lost against `model`.
void print_written(const Recipe& recipe, const ModelOutput& output, const ConversionReport& report,
                   const ConvertedModel* model = nullptr,
                   const std::optional<ConversionLoss>& loss = std::nullopt) {
  if (recipe.json) return print_json(output, report, loss);
  print_report(output, report);
  if (loss) print_loss(*model, *loss);
}

// The options with which eval_data are read and models measured.
std::vector<std::string> options_of_measuring(const Recipe& recipe) {
  std::vector<std::string> names = options_of_texts(recipe.options);
  for (const char* name :
       {"device", "device_memory", "host_memory", "weights", "attention", "product",
        "product_exclude", "seed", "sequence_len", "train_on_inputs"}) {
    names.emplace_back(name);
  }
  return names;
}

int convert(const Recipe& recipe, const char* command) {
  recipe.options.require("model", command);
  if (recipe.format == "gptq" || recipe.format == "exl2") {
    throw Error(
        ErrorKind::usage, fmt::format("{} does not write format={}", command, recipe.format),
        fmt::format("jackscrew quantize {}data=FILE output_dir=DIR format={} does",
                    recipe.adapters.empty() ? "model=M " : "model=M adapter=A ", recipe.format));
  }
  if (recipe.max_merge_loss && recipe.eval_data.empty()) {
    throw Error(ErrorKind::usage, "max_merge_loss is set, but there is nothing to evaluate on",
                "set eval_data");
  }
  Interruption interruption;
  const SignalThread thread(ending_signals(), [&](int signal) { interruption.receive(signal); });
  ProgressStyle style = stderr_style(recipe.quiet);
  style.check = [&] { interruption.check(); };
  ModelOutput output(recipe, command);
  const ConvertedModel model(recipe);
  if (recipe.eval_data.empty()) {
    warn_of_unused(recipe, command, options_of_measuring(recipe), " without eval_data");
  }
  if (output.format() == ModelFormat::gguf) {
    warn_of_unused(recipe, command, {"max_shard_size"}, " for a GGUF file");
  }
  Recipe measured = recipe;
  std::optional<Dataset> eval_data;  // read first: an error in it is told before the work
  if (!recipe.eval_data.empty()) {
    measured = measuring(recipe, model);
    eval_data = load_texts(measured, recipe.eval_data, make_tokenizer(recipe.tokenizer, model.base),
                           DataPart::evaluation, TargetUse::scored, style);
    const Reference reference = reference_of(measured, model);
    require_room_to_score({reference.recipe, reference.files},
                          comparison_use(measured.sequence_len));
  }
  const ConversionReport report = write_converted(recipe, model, output, style);
  std::optional<ConversionLoss> loss;
  if (eval_data) {
    loss = measure(measured, model, *eval_data, output.path(), style);
    refuse_loss(recipe, *loss);
  }
  output.commit();
  print_written(recipe, output, report, &model, loss);
  return 0;
}

int convert_adapter(const Recipe& recipe) {
  recipe.options.require("model", "export");
  recipe.options.require("adapter", "export format=gguf_adapter");
  if (!recipe.eval_data.empty()) {
    throw Error(ErrorKind::usage,
                "format=gguf_adapter changes nothing that eval_data could measure",
                "jackscrew eval model=M adapter=A data=FILE measures the adapter");
  }
  Interruption interruption;
  const SignalThread thread(ending_signals(), [&](int signal) { interruption.receive(signal); });
  ModelOutput output(recipe, "export");
  std::vector<std::string> unread = options_of_measuring(recipe);
  for (const char* name : {"max_merge_loss", "max_shard_size", "chat_template"}) {
    unread.emplace_back(name);
  }
  warn_of_unused(recipe, "export", unread, " with format=gguf_adapter");
  const ConversionReport report = write_adapter(recipe, output);
  interruption.check();
  output.commit();
  print_written(recipe, output, report);
  return 0;
}

int merge(const Recipe& given) {
  const Recipe recipe = with_storage_of_files(given);
  recipe.options.require("adapter", "merge");
  if (recipe.format == "gguf_adapter") {
    throw Error(ErrorKind::usage,
                "merge writes models, format=gguf_adapter is an adapter by itself",
                "jackscrew export model=M adapter=A format=gguf_adapter output=FILE.gguf");
  }
  return convert(recipe, "merge");
}

int export_model(const Recipe& given) {
  const Recipe recipe = with_storage_of_files(given);
  return recipe.format == "gguf_adapter" ? convert_adapter(recipe) : convert(recipe, "export");
}

}  // namespace

int run_merge(Arguments arguments) {
  return with_recipe(arguments, 0, "merge", merge);
}

int run_export(Arguments arguments) {
  return with_recipe(arguments, 0, "export", export_model);
}

}  // namespace jackscrew
