// jackscrew quantize: rounds a model to few bits, calibrated on text.
#include <fmt/format.h>

#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/interruption.h"
#include "conversion/compare.h"
#include "conversion/exl2_fit.h"
#include "conversion/exl2_rounder.h"
#include "conversion/gptq_rounder.h"
#include "conversion/quantise.h"
#include "session/evaluate.h"
#include "session/loading.h"
#include "session/plan.h"
#include "session/stage_loader.h"

namespace jackscrew {

namespace {

Dataset read_text_of(const Recipe& recipe, const std::vector<std::string>& data,
                     const ModelFiles& files, DataPart part, const ProgressStyle& style) {
  const Tokenizer tokenizer = make_tokenizer(recipe.tokenizer, files);
  return load_datasets(data_places(data), tokenizer, dataset_options(recipe, tokenizer), style,
                       part, {});
}

// Compares the written model with the one that it was made from. The recipe is run_over()'s.
Comparison measure_quantised(const Recipe& recipe, const ModelFiles& files, const Dataset& dataset,
                             const fs::path& written, const ProgressStyle& style) {
  const SessionUse use = comparison_use(recipe.sequence_len);
  const auto reference = open_session(recipe, files, use, style);
  const ModelFiles rounded = open_model(written.string());
  const auto session = open_session(recipe, rounded, use, style);
  return compare_sessions(*reference, *session, dataset, recipe.threads, style);
}

// Prints a line per block: the error of every matrix, and the bits of all together.
void print_blocks(const QuantisationReport& report) {
  int64_t layer = -2;  // before the first block; the head's is -1
  for (size_t i = 0; i < report.matrices.size(); ++i) {
    const WeightSpec& weight = report.matrices[i].weight;
    if (layer == -2) fmt::print("block  {:>5}", "bits");
    if (layer == -2) {
      for (size_t j = 0; j < report.matrices.size() && report.matrices[j].weight.layer == 0; ++j) {
        fmt::print("  {:>9}", report.matrices[j].weight.module);
      }
    }
    if (weight.layer != layer) {
      layer = weight.layer;
      double bits = 0.0, elements = 0.0;
      for (const QuantisedMatrix& matrix : report.matrices) {
        if (matrix.weight.layer != layer) continue;
        bits += matrix.bits * static_cast<double>(matrix.weight.size());
        elements += static_cast<double>(matrix.weight.size());
      }
      fmt::print("\n{:>5}  {:>5.2f}", layer < 0 ? "head" : std::to_string(layer), bits / elements);
    }
    fmt::print("  {:>7.3f} %", 100.0 * report.matrices[i].error);
  }
  fmt::print("\n(of each matrix, what its outputs are off by: squares, as a share of theirs)\n");
}

void print_quantised(const ModelOutput& output, const QuantisationReport& report,
                     const std::optional<Comparison>& loss, double seconds) {
  print_blocks(report);
  fmt::print("wrote {}: {}, {:.2f} bits a weight of the blocks; {} of calibration, {}{}\n",
             one_line(output.target().string()), human_bytes(report.bytes), report.bits,
             counted(report.calibration_tokens, "token"),
             // All blocks may have been there already.
             report.memory > 0 ? human_bytes(report.memory) + " of memory, " : "",
             human_duration(seconds));
  for (const std::string& note : report.notes) fmt::print("  {}\n", one_line(note));
  if (!loss) return;
  fmt::print("  model           loss {:.4f}\n", loss->reference_loss);
  fmt::print("  written         loss {:.4f}  KL {:.2e}  same likeliest token {:.2f} %  ({})\n",
             loss->loss, loss->divergence, 100.0 * loss->agreement, counted(loss->tokens, "token"));
}

void print_plan(const Recipe& recipe, const ModelOutput& output, const QuantisationReport& report) {
  if (recipe.json) {
    fmt::print("{}\n",
               JsonObject().add("output", output.target().string()).merge(report.to_json()).text());
    return;
  }
  const char* most = report.is_bound ? "at most " : "";
  fmt::print("would write {}: {}{}, {} in {}{:.2f} bits a weight of the blocks\n",
             one_line(output.target().string()), most, human_bytes(report.bytes),
             counted(std::ssize(report.matrices), "matrix", "matrices"), most, report.bits);
  for (const std::string& note : report.notes) fmt::print("  {}\n", one_line(note));
}

// The merged model already contains the adapters.
Recipe without_adapters(Recipe recipe) {
  recipe.adapter.clear();
  recipe.adapters.clear();
  recipe.adapter_weights.clear();
  return recipe;
}

// The recipe of a session on the model that is read or will be written: storage is of the files.
Recipe run_over(const Recipe& recipe, const ModelConfig& config) {
  Recipe run = without_adapters(recipe);
  run.storage = "keep";
  settle_lengths(run, config);
  return run;
}

std::unique_ptr<Rounder> make_fitting_exl2_rounder(const Recipe& recipe, const ModelFiles& files,
                                                   const std::string& rest) {
  Exl2Limit limit{recipe.options.number("bits"), {}};
  if (exl2_fits_a_run(recipe)) {
    limit.memory_bytes = exl2_bytes_that_fit(run_over(recipe, files.config), files,
                                             recipe.options.integer("head_bits"), rest);
  }
  return make_exl2_rounder(recipe, files.config, limit);
}

void check_format(const Recipe& recipe) {
  if (recipe.format == "gptq" || recipe.format == "exl2" || recipe.format == "auto") return;
  throw Error(
      ErrorKind::usage, fmt::format("quantize does not write format={}", recipe.format),
      "quantize writes format=gptq and exl2; export writes hf and gguf, with storage=nf4 or "
      "q4_k");
}

// Only directories hold these layouts.
void check_output(const ModelOutput& output) {
  if (output.format() == ModelFormat::hf) return;
  throw Error(
      ErrorKind::usage,
      fmt::format("quantize writes a directory, but {} has the name of a GGUF file",
                  output.target().string()),
      "name a directory; jackscrew export model=M output=FILE.gguf storage=q4_k_m writes GGUF, and "
      "merge with adapters");
}

// What was written and measured, before the output gets its final name.
struct Quantised {
  QuantisationReport report;
  std::optional<Comparison> loss;
};

Quantised write_and_measure(const Recipe& recipe, const ModelFiles& files, Rounder& rounder,
                            const QuantisationPlan& plan, const CalibrationText& text,
                            const std::optional<Dataset>& eval_data,
                            QuantisationCheckpoint& checkpoint, ModelOutput& output,
                            const ProgressStyle& style) {
  Quantised out{write_quantised(recipe, files, rounder, plan, text, checkpoint, output, style), {}};
  try {
    if (exl2_fits_a_run(recipe)) {
      check_exl2_fits(run_over(recipe, files.config), open_model(output.path().string()));
    }
  } catch (const Error&) {
    checkpoint.remove();  // useless for another rate
    throw;
  }
  if (eval_data) {
    out.loss =
        measure_quantised(run_over(recipe, files.config), files, *eval_data, output.path(), style);
  }
  output.commit();
  checkpoint.remove();
  return out;
}

[[noreturn]] void stop(const QuantisationCheckpoint& checkpoint, const ModelConfig& config) {
  throw Error(ErrorKind::interrupted, "stopped " + progress_text(checkpoint.progress(), config),
              fmt::format("run the same command again to continue from {}",
                          checkpoint.directory().string()));
}

int quantise(const Recipe& given) {
  const Recipe recipe = with_storage_of_files(given);
  recipe.options.require("model", "quantize");
  recipe.options.require("output_dir", "quantize");
  check_format(recipe);
  check_calibration_product(recipe.product);
  // Errors in the recipe alone are reported before any file is opened.
  std::unique_ptr<Rounder> rounder;
  if (recipe.format != "exl2") rounder = make_gptq_rounder(recipe);
  const bool dry = recipe.options.boolean("dry_run");
  if (!dry) recipe.options.require("data", "quantize");
  const Stopwatch watch;
  Interruption interruption;
  const SignalThread thread(kEndingSignals, [&](int signal) { interruption.receive(signal); });
  ProgressStyle style = stderr_style(recipe.quiet);
  style.check = [&] { interruption.check(); };
  ModelOutput output(recipe, "quantize");
  check_output(output);
  if (!exl2_fits_a_run(recipe) && recipe.eval_data.empty()) {
    warn_of_unused(recipe, "quantize",
                   {"device", "device_memory", "host_memory", "weights", "attention",
                    "product_exclude", "seed"},
                   " without eval_data");
  }
  const ConvertedModel model(recipe);
  const ModelFiles& files = model.result();
  const CalibrationSize size = calibration_size(recipe, files.config);
  // Texts have the template beside the adapter, as the written model will.
  const auto reading = [&](int64_t sequence_len) {
    Recipe read = recipe;
    read.sequence_len = sequence_len;
    settle_lengths(read, files.config);
    return read;
  };
  const Recipe lengths = reading(size.sequence_len);
  const std::string rest = rest_storage(recipe, model.base);
  if (rounder == nullptr) rounder = make_fitting_exl2_rounder(recipe, files, rest);
  const QuantisationPlan plan(recipe, files, rest, *rounder);
  // All data are read first: an error in them is told before the work, and by a dry run too.
  std::optional<Dataset> eval_data;
  if (!recipe.eval_data.empty()) {
    eval_data = read_text_of(reading(recipe.sequence_len), recipe.eval_data, files,
                             DataPart::evaluation, style);
  }
  CalibrationText text;
  if (!recipe.data.empty()) {
    text = calibration_text(read_text_of(lengths, recipe.data, files, DataPart::train, style),
                            size.sequences, size.sequence_len, plan.least_tokens());
  }
  if (dry) {
    print_plan(recipe, output, plan.report());
    return 0;
  }
  QuantisationCheckpoint checkpoint(
      output.target(), quantisation_settings(recipe, model, *rounder, text), recipe.overwrite);
  Quantised quantised;
  try {
    quantised = write_and_measure(recipe, files, *rounder, plan, text, eval_data, checkpoint,
                                  output, style);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::interrupted || checkpoint.empty()) throw;
    stop(checkpoint, files.config);
  }
  if (recipe.json) {
    JsonObject json;
    json.add("output", output.target().string()).merge(quantised.report.to_json());
    if (quantised.loss) json.merge(quantised.loss->to_json());
    fmt::print("{}\n", json.text());
  } else {
    print_quantised(output, quantised.report, quantised.loss, watch.seconds());
  }
  return 0;
}

}  // namespace

int run_quantise(Arguments arguments) {
  return with_recipe(arguments, 0, "quantize", quantise);
}

}  // namespace jackscrew
