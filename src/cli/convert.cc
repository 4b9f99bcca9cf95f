// jackscrew merge and export: write a model, with or without adapters, as files for other programs.
#include <fmt/format.h>

#include <optional>

#include "base/directory.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/interruption.h"
#include "cli/quantise.h"
#include "cli/written_loss.h"
#include "conversion/convert.h"
#include "session/adapter.h"
#include "session/plan.h"

namespace jackscrew {

namespace {

// The recipe with which a model is measured.
Recipe measuring(const Recipe& given, const ConvertedModel& model) {
  Recipe recipe = without_training(given);
  recipe.storage = "keep";  // the option describes what is written
  settle_lengths(recipe, model.base);
  return recipe;
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
  print_notes(report.notes);
}

// Reports what was written and, if it was measured, how much that lost against `model`.
void print_written(const Recipe& recipe, const ModelOutput& output, const ConversionReport& report,
                   const ConvertedModel* model = nullptr,
                   const std::optional<WrittenLoss>& loss = std::nullopt) {
  if (recipe.json) return print_output_json(output, report.to_json(), loss);
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
  check_loss_options(recipe);
  Interruption interruption;
  const SignalThread thread(kEndingSignals, [&](int signal) { interruption.receive(signal); });
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
  const Recipe measured = recipe.eval_data.empty() ? recipe : measuring(recipe, model);
  std::optional<Dataset> eval_data;  // read first: an error in it is told before the work
  std::vector<ModelTensor> tensors;
  if (!recipe.eval_data.empty()) {
    std::vector<std::string> ignored;  // the report of what is written has them
    tensors = tensors_to_write(model.result(),
                               {output.format(), recipe.storage, model.base.source.get()}, ignored);
    eval_data = read_eval_data(measured, measured, model, {output.format(), tensors}, style);
  }
  const ConversionReport report = write_converted(recipe, model, output, style);
  std::optional<WrittenLoss> loss;
  if (eval_data) {
    loss = measure_written(measured, model, {output.format(), tensors}, *eval_data, output, style);
    refuse_loss(recipe, *loss);
  }
  output.commit();
  print_written(recipe, output, report, &model, loss);
  return 0;
}

int convert_adapter(const Recipe& recipe) {
  recipe.options.require("model", "export");
  recipe.options.require("adapter", "export format=gguf_adapter");
  // Refuses options that contradict the adapter, as merge does.
  if (recipe.adapters.size() == 1) with_adapter_options(recipe);
  if (!recipe.eval_data.empty()) {
    throw Error(ErrorKind::usage,
                "format=gguf_adapter changes nothing that eval_data could measure",
                "jackscrew eval model=M adapter=A data=FILE measures the adapter");
  }
  Interruption interruption;
  const SignalThread thread(kEndingSignals, [&](int signal) { interruption.receive(signal); });
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

int merge(const Recipe& recipe) {
  // An adapter that is given as the model: opening it says so.
  const bool has_model = !recipe.model.empty() && recipe.adapters.empty();
  if (has_model && is_there(fs::path(recipe.model) / kAdapterConfig, ErrorKind::model)) {
    open_model(recipe.model);
  }
  recipe.options.require("adapter", "merge");
  if (recipe.format == "gguf_adapter") {
    throw Error(ErrorKind::usage,
                "merge writes models, format=gguf_adapter is an adapter by itself",
                "jackscrew export model=M adapter=A format=gguf_adapter output=FILE.gguf");
  }
  if (quantises(recipe.options)) return quantise(recipe, "merge");
  return convert(with_storage_of_files(recipe), "merge");
}

int export_model(const Recipe& recipe) {
  if (quantises(recipe.options)) return quantise(recipe, "export");
  const Recipe written = with_storage_of_files(recipe);
  return written.format == "gguf_adapter" ? convert_adapter(written) : convert(written, "export");
}

}  // namespace

int run_merge(Arguments arguments) {
  return with_unbudgeted_recipe(arguments, 0, "merge", merge);
}

int run_export(Arguments arguments) {
  return with_unbudgeted_recipe(arguments, 0, "export", export_model);
}

}  // namespace jackscrew
