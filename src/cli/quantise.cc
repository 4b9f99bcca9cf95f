// jackscrew quantize: rounds a model to few bits, calibrated on text.
#include <fmt/format.h>

#include <map>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/interruption.h"
#include "cli/quantise.h"
#include "cli/written_loss.h"
#include "conversion/exl2_mixtures.h"
#include "conversion/exl2_rounder.h"
#include "conversion/fitting_layouts.h"
#include "conversion/gptq_rounder.h"
#include "conversion/quantise.h"
#include "conversion/rate_fit.h"
#include "conversion/storage_rounder.h"
#include "formats/exl2_writer.h"
#include "session/adapter.h"
#include "session/loading.h"
#include "session/plan.h"
#include "session/stage_loader.h"

namespace jackscrew {

namespace {

// For the report, where the text has a say in what is written.
std::vector<std::string> notes_on_text(const Recipe& recipe, const Rounder& rounder) {
  if (!recipe.data.empty() || !rounder.compensates()) return {};
  return {
      "the text is the program's own: data=FILE of the kind that the model will read loses less"};
}

CalibrationText read_calibration_text(const Recipe& recipe, const ModelFiles& files,
                                      const CalibrationSize& size, int64_t least,
                                      const ProgressStyle& style) {
  const Tokenizer tokenizer = make_tokenizer(recipe.tokenizer, files);
  if (recipe.data.empty()) return calibration_text(calibration_tokens(tokenizer), size, least);
  // A text needs no answer to be calibrated on.
  Recipe whole = recipe;
  whole.train_on_inputs = true;
  return calibration_text(
      load_texts(whole, whole.data, tokenizer, DataPart::train, TargetUse::none, style), size,
      least);
}

// Prints a line per block: the error of every matrix, and the bits of all together.
void print_blocks(const QuantisationReport& report) {
  fmt::print("block  {:>5}", "bits");
  for (const QuantisedMatrix& matrix : report.matrices) {
    if (matrix.weight.layer != 0) break;
    fmt::print("  {:>9}", matrix.weight.module);
  }
  std::optional<int64_t> layer;  // of the line that was begun; the head's is -1
  for (const QuantisedMatrix& shown : report.matrices) {
    if (layer != shown.weight.layer) {
      layer = shown.weight.layer;
      double bits = 0.0, elements = 0.0;
      for (const QuantisedMatrix& matrix : report.matrices) {
        if (matrix.weight.layer != layer) continue;
        bits += matrix.bits * static_cast<double>(matrix.weight.size());
        elements += static_cast<double>(matrix.weight.size());
      }
      fmt::print("\n{:>5}  {:>5.2f}", *layer < 0 ? "head" : std::to_string(*layer),
                 bits / elements);
    }
    fmt::print("  {:>7.3f} %", 100.0 * shown.error);
  }
  fmt::print("\n(of each matrix, what its outputs are off by: squares, as a share of theirs)\n");
}

void print_plan(const Recipe& recipe, const ModelOutput& output, const QuantisationReport& report) {
  if (recipe.json) return print_output_json(output, report.to_json(), {});
  const char* most = report.is_bound ? "at most " : "";
  fmt::print("would write {}: {}{}, {} in {}{:.2f} bits a weight of the blocks; {}{} of memory\n",
             one_line(output.target().string()), most, human_bytes(report.bytes),
             counted(std::ssize(report.matrices), "matrix", "matrices"), most, report.bits, most,
             human_bytes(report.memory));
  print_notes(report.notes);
}

// The recipe of a session on the model that is read or will be written, with its adapters merged:
// storage is of the files.
Recipe run_over(const Recipe& recipe, const ModelFiles& files) {
  Recipe run = without_adapters(recipe);
  run.storage = "keep";
  settle_lengths(run, files);
  return run;
}

// The recipe of a session that scores either model. A device_memory and a product that are a
// training run's say nothing of it.
Recipe scoring(const Recipe& recipe, const ModelFiles& files) {
  Recipe score = run_over(without_training(calibrating(recipe)), files);
  if (rate_fits_a_run(recipe.options)) score.device_memory.reset();
  return score;
}

// The limit that bits or, by way of a run over the model as it will be written, device_memory sets.
RateLimit rate_limit(const Recipe& recipe, const ModelFiles& files, const ModelConfig& written,
                     const HeldFormats& formats) {
  RateLimit limit{recipe.bits};
  if (rate_fits_a_run(recipe.options)) {
    limit.stages = limits_that_fit(run_over(recipe, files), files.origin, written, formats);
  }
  return limit;
}

std::unique_ptr<LayoutRounder> make_fitting_exl2_rounder(const Recipe& recipe,
                                                         const ModelFiles& files,
                                                         const std::string& rest) {
  require_shapes(files.config, check_exl2_shape);
  ModelConfig written = files.config;
  if (recipe.head_bits != kExl2PlainHead) written.tie_word_embeddings = false;
  const RateLimit limit = rate_limit(recipe, files, written, [&](const WeightSpec& weight) {
    return exl2_held_formats(weight, recipe.head_bits, rest);
  });
  return make_exl2_rounder(recipe, files.config, limit);
}

std::unique_ptr<LayoutRounder> make_fitting_gptq_rounder(const Recipe& recipe,
                                                         const ModelFiles& files) {
  auto rounder = make_gptq_rounder(recipe);
  require_shapes(files.config, [&](const WeightSpec& weight) { rounder->specs(weight); });
  return rounder;
}

// What rounds the model's matrices, and the files that they are written to.
struct Quantiser {
  std::shared_ptr<Rounder> rounder;
  std::unique_ptr<QuantisedFiles> files;
};

// Whether matrices are rounded to a storage format, rather than in a layout of quantised files.
bool rounds_to_storage(const Recipe& recipe, ModelFormat files) {
  return files == ModelFormat::gguf || recipe.format == "hf";
}

// Types of GGUF, chosen for a rate.
Quantiser make_mixed_quantiser(const Recipe& recipe, const ConvertedModel& model) {
  const ModelFiles& files = model.result();
  if (!has_mixed_types(files.config)) fail_to_round(files.config);
  StorageChoice choice{ModelFormat::gguf, kMixedRest, model.base.source.get()};
  std::vector<std::string> ignored;  // about formats that will be chosen
  std::map<std::string, const Format*> rest;
  for (const auto& [weight, format] : tensors_to_write(files, choice, ignored)) {
    rest[weight.name] = format;
  }
  const auto held = [&](const WeightSpec& weight) {
    std::vector<const Format*> types = mixed_types(weight);
    if (types.empty()) types.push_back(rest.at(weight.name));
    std::vector<FormatPointer> formats;
    for (const Format* type : types) formats.push_back(unowned(*type));
    return formats;
  };
  std::shared_ptr<StorageRounder> rounder =
      make_mixed_rounder(recipe, files.config, held, rate_limit(recipe, files, files.config, held));
  choice.fixed_format = [rounder](const WeightSpec& weight) { return rounder->format_of(weight); };
  return {rounder, make_converted_files(recipe, files, choice)};
}

Quantiser make_quantiser(const Recipe& recipe, const ConvertedModel& model, ModelFormat format,
                         const CalibrationSize& text) {
  const ModelFiles& files = model.result();
  if (format == ModelFormat::gguf) require_gguf_place(files.config);
  if (mixes_gguf_types(recipe.options)) return make_mixed_quantiser(recipe, model);
  if (rounds_to_storage(recipe, format)) {
    auto written =
        make_converted_files(recipe, files, {format, recipe.storage, model.base.source.get()});
    auto rounder = make_storage_rounder(recipe, format, written->tensors());
    return {std::move(rounder), std::move(written)};
  }
  const std::string rest = rest_storage(recipe, model.base);
  auto rounder = recipe.format == "exl2" ? make_fitting_exl2_rounder(recipe, files, rest)
                                         : make_fitting_gptq_rounder(recipe, files);
  auto written = make_layout_files(recipe, files, rest, *rounder, text);
  return {std::move(rounder), std::move(written)};
}

// Throws Error(usage) for what the recipe alone shows to be wrong.
void check_recipe(const Recipe& recipe, const ModelOutput& output) {
  if (recipe.format == "gguf_adapter") {
    throw Error(ErrorKind::usage, "quantize does not write format=gguf_adapter",
                "quantize writes format=gptq, exl2, gguf, hf and bnb; export writes adapters");
  }
  check_calibration_product(calibrating(recipe).product);
  if (rounds_to_storage(recipe, output.format())) {
    check_storage_rounding(recipe, output.format(), mixes_gguf_types(recipe.options));
  } else if (recipe.format != "exl2") {
    make_gptq_rounder(recipe);
  }
}

void warn_of_unused_options(const Recipe& recipe, const std::string& command, ModelFormat format) {
  const auto warn_of = [&](const std::vector<std::string>& names, const char* where) {
    warn_of_unused(recipe, command, names, where);
  };
  if (format == ModelFormat::gguf) warn_of({"max_shard_size"}, " for a GGUF file");
  if (!recipe.compensates) warn_of({"damp_percent"}, " with rounding=nearest");
  if (rate_fits_a_run(recipe.options)) return;
  warn_of({"ranks"}, " without device_memory");
  if (!recipe.eval_data.empty()) return;
  warn_of({"device", "device_memory", "host_memory", "weights", "attention", "product_exclude",
           "seed", "train_on_inputs"},
          " without eval_data");
  if (recipe.data.empty()) warn_of(options_of_texts(recipe.options), " without data");
}

// The report of a dry run.
QuantisationReport planned_report(const QuantiseJob& job, const CalibrationText& text) {
  QuantisationReport report = job.plan.report();
  report.calibration_tokens = text.tokens();
  report.memory = quantising_memory(job, text.size());
  return report;
}

// What was written and measured.
struct Quantised {
  QuantisationReport report;
  std::optional<WrittenLoss> loss;
};

// Measures before the output gets its final name.
Quantised write_and_measure(const QuantiseJob& job, const CalibrationText& text,
                            const std::optional<Dataset>& eval_data,
                            QuantisationCheckpoint& checkpoint, ModelOutput& output) {
  const Recipe& recipe = job.recipe;
  const ModelFiles& files = job.model.result();
  Quantised out{write_quantised(job, text, checkpoint, output), {}};
  if (rate_fits_a_run(recipe.options)) {
    checkpoint.must_hold(ErrorKind::does_not_fit, [&] {
      output.require_in_place();
      check_fits(run_over(recipe, files), open_model(output.path().string()));
    });
  }
  if (eval_data) {
    out.loss =
        measure_written(scoring(recipe, files), job.model, {output.format(), job.written.tensors()},
                        *eval_data, output, job.style);
    checkpoint.must_hold(ErrorKind::generic, [&] { refuse_loss(recipe, *out.loss); });
  }
  output.commit();
  checkpoint.remove();
  return out;
}

// Throws what has ended the command, with how to continue from what is finished.
[[noreturn]] void fail_resumably(const QuantiseJob& job, const QuantisationCheckpoint& checkpoint,
                                 const Error& error) {
  const std::string again = fmt::format("run the same command again to continue from {}",
                                        checkpoint.directory().string());
  if (error.kind() == ErrorKind::interrupted) {
    throw Error(ErrorKind::interrupted,
                "stopped " + progress_text(checkpoint.progress(), job.model.result().config),
                again);
  }
  if (error.kind() == ErrorKind::usage) {  // of this kind only PlaceTaken comes here
    throw Error(error.kind(), error.what(), "move it away, and " + again);
  }
  throw Error(error.kind(), error.what(),
              error.hint().empty() ? again : error.hint() + "; " + again);
}

// Continues from the checkpoint, if there is one, and says so where this ends early in turn.
Quantised quantise_resumably(const QuantiseJob& job, const CalibrationText& text,
                             const std::optional<Dataset>& eval_data, ModelOutput& output) {
  QuantisationCheckpoint checkpoint(
      output.target(), quantisation_settings(job.recipe, job.model, job.rounder, text, job.style),
      job.recipe.overwrite);
  try {
    return without_budget_hint(
        [&] { return write_and_measure(job, text, eval_data, checkpoint, output); });
  } catch (const std::exception& exception) {
    if (!checkpoint.continues_after(exception)) throw;
    fail_resumably(job, checkpoint, error_of(exception));
  }
}

void print_quantised(const QuantiseJob& job, const ModelOutput& output, const Quantised& quantised,
                     double seconds) {
  const QuantisationReport& report = quantised.report;
  if (job.recipe.json) return print_output_json(output, report.to_json(), quantised.loss);
  print_blocks(report);
  fmt::print("wrote {}: {}, {:.2f} bits a weight of the blocks; {} of calibration, {}{}\n",
             one_line(output.target().string()), human_bytes(report.bytes), report.bits,
             counted(report.calibration_tokens, "token"),
             // All blocks may have been there already.
             report.memory > 0 ? human_bytes(report.memory) + " of memory, " : "",
             human_duration(seconds));
  print_notes(report.notes);
  if (quantised.loss) print_loss(job.model, *quantised.loss);
}

}  // namespace

bool quantises(const OptionSet& options) {
  const std::string format = options.text("format");
  return format == "gptq" || format == "exl2";
}

int quantise(const Recipe& given, const std::string& command) {
  const Recipe recipe = with_storage_of_files(given);
  recipe.options.require("model", command);
  check_loss_options(recipe);
  // A variable of the shell that is empty must not choose another text.
  if (recipe.data.empty() && recipe.options.asks_for("data")) {
    throw Error(ErrorKind::usage, "data is empty",
                "leave it out to calibrate on the program's own");
  }
  const Stopwatch watch;
  Interruption interruption;
  const SignalThread thread(kEndingSignals, [&](int signal) { interruption.receive(signal); });
  ProgressStyle style = stderr_style(recipe.quiet);
  style.check = [&] { interruption.check(); };
  ModelOutput output(recipe, command);
  // Before any file is opened.
  check_recipe(recipe, output);
  warn_of_unused_options(recipe, command, output.format());
  require_one_rate(recipe.options);
  const ConvertedModel model(recipe);
  const ModelFiles& files = model.result();
  const CalibrationSize size = calibration_size(recipe, files.config);
  // Texts have the template beside the adapter, as the written model will.
  const auto reading = [&](int64_t sequence_len) {
    Recipe read = without_training(recipe);
    read.sequence_len = sequence_len;
    settle_lengths(read, files);
    return read;
  };
  const Recipe lengths = reading(size.sequence_len);
  Quantiser quantiser = make_quantiser(recipe, model, output.format(), size);
  if (rate_fits_a_run(recipe.options) && given.storage != recipe.storage) {
    const bool was_set = given.options.was_set("storage");
    warn(fmt::format(
        "{} storage={}, but the run that is planned keeps the written codes: train with "
        "storage=keep, the default of method=lora",
        was_set ? given.options.origin("storage") + " has"
                : fmt::format("method={} implies", recipe.options.text("method")),
        given.storage));
  }
  const QuantisationPlan plan(files.config, *quantiser.rounder, *quantiser.files);
  const QuantiseJob job{recipe, model, *quantiser.rounder, *quantiser.files, plan, style};
  // All data are read first: an error in them is told before the work, and by a dry run too.
  std::optional<Dataset> eval_data;
  if (!recipe.eval_data.empty()) {
    std::vector<WeightSpec> coded;
    for (const ModelTensor& tensor : quantiser.files->tensors()) {
      if (tensor.format == nullptr) coded.push_back(tensor.spec);
    }
    eval_data = read_eval_data(reading(recipe.sequence_len), scoring(recipe, files), model,
                               {output.format(), quantiser.files->tensors(),
                                coded.empty() ? 0 : quantiser.rounder->most_bytes(coded)},
                               style);
  }
  const CalibrationText text =
      read_calibration_text(lengths, files, size, plan.least_tokens(), style);
  std::vector<std::string> notes = notes_on_text(recipe, *quantiser.rounder);
  notes.insert(notes.end(), model.notes.begin(), model.notes.end());
  if (recipe.dry_run) {
    QuantisationReport report = planned_report(job, text);
    report.notes.insert(report.notes.end(), notes.begin(), notes.end());
    print_plan(recipe, output, report);
    return 0;
  }
  Quantised quantised = quantise_resumably(job, text, eval_data, output);
  quantised.report.notes.insert(quantised.report.notes.end(), notes.begin(), notes.end());
  print_quantised(job, output, quantised, watch.seconds());
  return 0;
}

int run_quantise(Arguments arguments) {
  return with_unbudgeted_recipe(arguments, 0, "quantize",
                                [](const Recipe& recipe) { return quantise(recipe, "quantize"); });
}

}  // namespace jackscrew
