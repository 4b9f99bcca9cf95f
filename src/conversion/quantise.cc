#include "conversion/quantise.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <optional>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/text.h"
#include "conversion/fitting_layouts.h"
#include "conversion/quantise_blocks.h"
#include "conversion/rate_fit.h"
#include "formats/safetensors.h"
#include "model/weights.h"
#include "quant/plain.h"
#include "session/fingerprint.h"
#include "session/fit.h"

namespace jackscrew {

namespace {

// Length of calibration sequences where the recipe sets none: a quarter of that in GPTQ's own
// experiments. A small model's Hessians reach full rank with it, and a large model's text stays
// short.
constexpr int64_t kCalibrationLength = 512;

// Ways of rounding are compared on one part in kMeasuredShare of the text: they are ranked by sums
// over many tokens, and each block must be run once more for it.
constexpr int64_t kMeasuredShare = 4;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();  // null in JSON

// The sequences of that part of the text, but at least enough for Hessians of full rank.
int64_t measured_sequences(const CalibrationSize& text, const QuantisationPlan& plan) {
  return std::min(text.sequences, std::max(text.sequences / kMeasuredShare,
                                           ceil_div(plan.least_tokens(), text.sequence_len)));
}

std::optional<WeightSpec> rounded_head(const ModelConfig& config, const QuantisationPlan& plan) {
  return plan.rounds_head() ? std::optional(head_of(config)) : std::nullopt;
}

// The weights that are not rounded.
std::vector<ModelTensor> plain_tensors(const QuantiseJob& job) {
  std::vector<ModelTensor> plain;
  for (const ModelTensor& tensor : job.written.tensors()) {
    if (!job.rounder.rounds(tensor.spec)) plain.push_back(tensor);
  }
  return plain;
}

// The checkpoint and the result are both on disk at the end, and for a moment so are two streams;
// `memory` is what the work takes beside them.
void require_disk(const QuantisationPlan& plan, const ModelConfig& config,
                  const CalibrationText& text, const QuantisationCheckpoint& checkpoint,
                  int64_t memory, const ModelOutput& output) {
  const int64_t stream = checked_mul(checked_mul(text.tokens(), config.hidden_size),
                                     static_cast<int64_t>(sizeof(float)));
  const int64_t bytes = checked_mul(2, checked_add(plan.report().bytes, stream));
  output.require_space(
      {std::max<int64_t>(0, bytes - checkpoint.bytes()), std::max(stream, plan.largest_file())},
      memory);
}

// Sets the bits per element of every matrix, and the average over those in blocks.
void set_bits(QuantisationReport& report, const Rounder& rounder) {
  double bits = 8.0 * static_cast<double>(report.plain_bytes);
  double elements = static_cast<double>(report.plain_elements);
  for (QuantisedMatrix& matrix : report.matrices) {
    const double of = 8.0 * static_cast<double>(bytes_of(rounder.specs(matrix.weight)));
    matrix.bits = of / static_cast<double>(matrix.weight.size());
    if (!matrix.weight.is_block_matrix()) continue;
    bits += of;
    elements += static_cast<double>(matrix.weight.size());
  }
  report.bits = bits / elements;
}

}  // namespace

std::string rest_storage(const Recipe& recipe, const ModelFiles& base) {
  if (recipe.storage != "keep") {
    const Format* format = format_named(recipe.storage);
    if (format != nullptr && safetensors_dtype(*format) != nullptr) return recipe.storage;
    throw Error(
        ErrorKind::usage,
        fmt::format("storage={}, but what is not in codes is f32, bf16 or f16", recipe.storage),
        "bits sets what the linear layers of the blocks have; types of GGUF are for "
        "output=FILE.gguf, nf4 for format=hf");
  }
  const WeightSpec embedding = {.name = "model.embed_tokens.weight"};
  const StoredTensor& stored = stored_tensor(base, *base.source, embedding);
  return stored.format.get() == &bf16_format() ? "bf16" : "f16";
}

CalibrationSize calibration_size(const Recipe& recipe, const ModelConfig& config) {
  // With a run that is to fit, sequence_len is the run's.
  const bool is_own = !rate_fits_a_run(recipe.options);
  return {recipe.calibration_sequences,
          is_own && recipe.options.was_set("sequence_len")
              ? recipe.sequence_len
              : std::min(kCalibrationLength, config.longest_sequence()),
          is_own};
}

Recipe calibrating(const Recipe& recipe) {
  Recipe out = recipe;
  if (!rate_fits_a_run(recipe.options)) return out;
  out.product = "auto";
  out.product_exclude.clear();
  out.attention = AttentionLibrary::own;
  return out;
}

JsonObject QuantisationReport::to_json() const {
  std::string rows;
  for (const QuantisedMatrix& matrix : matrices) {
    const JsonObject row = JsonObject()
                               .add("name", matrix.weight.name)
                               .add("bits", matrix.bits)
                               .add("error", matrix.error);
    rows += (rows.empty() ? "" : ", ") + row.text();
  }
  return JsonObject()
      .add("bytes", bytes)
      .add("bits", bits)
      .add("calibration_tokens", calibration_tokens)
      .add("memory", memory)
      .add_json("matrices", "[" + rows + "]")
      .add("notes", notes);
}

QuantisationPlan::QuantisationPlan(const ModelConfig& config, const Rounder& rounder,
                                   const QuantisedFiles& files)
    : rounds_head_(rounder.rounds(head_of(config))) {
  std::vector<WeightSpec> rounded;
  for (const ModelTensor& tensor : files.tensors()) {
    const WeightSpec& weight = tensor.spec;
    if (!rounder.rounds(weight)) {
      if (!weight.is_block_matrix()) continue;
      report_.plain_bytes = checked_add(report_.plain_bytes, tensor.bytes());
      report_.plain_elements = checked_add(report_.plain_elements, weight.size());
      continue;
    }
    rounded.push_back(weight);
    report_.matrices.push_back({weight, kUnknown, kUnknown});
    if (rounder.compensates()) least_tokens_ = std::max(least_tokens_, weight.cols);
  }
  if (rounded.empty()) fail_to_round(config);
  report_.notes = rounder.notes(rounded);
  report_.notes.insert(report_.notes.end(), files.notes().begin(), files.notes().end());
  set_bits(report_, rounder);
  const FileSizes sizes = files.sizes();
  report_.bytes = sizes.all;
  largest_file_ = sizes.largest;
  if (!rounder.measures()) return;
  // These sizes assume the most bits for every matrix; the bound on the total replaces them.
  report_.is_bound = true;
  int64_t elements = report_.plain_elements;
  int64_t largest = 0;
  std::vector<WeightSpec> blocks;
  for (QuantisedMatrix& matrix : report_.matrices) {
    largest = checked_add(largest, bytes_of(rounder.specs(matrix.weight)));
    if (!matrix.weight.is_block_matrix()) continue;
    matrix.bits = kUnknown;
    elements = checked_add(elements, matrix.weight.size());
    blocks.push_back(matrix.weight);
  }
  const int64_t most = checked_add(rounder.most_bytes(blocks), report_.plain_bytes);
  report_.bits = 8.0 * static_cast<double>(most) / static_cast<double>(elements);
  report_.bytes = checked_add(report_.bytes - largest, rounder.most_bytes(rounded));
  largest_file_ = std::min(largest_file_, report_.bytes);
}

QuantisationSettings quantisation_settings(const Recipe& recipe, const ConvertedModel& model,
                                           const Rounder& rounder, const CalibrationText& text,
                                           const ProgressStyle& style) {
  QuantisationSettings settings = rounder.settings();
  if (rounder.compensates()) settings["damp_percent"] = fmt::format("{}", rounder.damping());
  const auto sum = [](uint32_t crc) { return fmt::format("{:08x}", crc); };
  settings["version"] = JACKSCREW_VERSION;
  settings["isa"] = isa_name(choose_isa(recipe.isa));
  settings["product"] = calibrating(recipe).product;
  ProgressBar bar(std::cerr, style, "checking model", stored_bytes(model.base), "B");
  settings["model"] = sum(model_checksum(model.base, bar.callback()));
  bar.finish();
  // The run that has to fit has scratch memory for each thread.
  if (rate_fits_a_run(recipe.options)) settings["threads"] = std::to_string(recipe.threads);
  settings["calibration_sequences"] = std::to_string(text.sequences);
  settings["sequence_len"] = std::to_string(text.sequence_len);
  settings["data"] = sum(crc32c(
      {reinterpret_cast<const uint8_t*>(text.ids.data()), text.ids.size() * sizeof(int32_t)}));
  std::vector<std::string> adapters;
  std::vector<double> weights;
  for (const WeightedAdapter& adapter : model.adapters) {
    const fs::path directory = adapter.directory;
    Crc32c crc;
    for (const char* name : {kPeftWeightsFile, kAdapterConfig}) {
      crc.add(MappedFile(directory / name).bytes());
    }
    adapters.push_back(sum(crc.value()));
    weights.push_back(adapter.weight);
  }
  if (adapters.empty()) return settings;
  settings["adapter"] = fmt::format("{}", fmt::join(adapters, ","));
  if (std::ranges::any_of(weights, [](double weight) { return weight != 1.0; })) {
    settings["adapter_weight"] = fmt::format("{}", fmt::join(weights, ","));
  }
  return settings;
}

std::string progress_text(const QuantisationProgress& progress, const ModelConfig& config) {
  const int64_t blocks = config.num_hidden_layers;
  const bool measuring = progress.rounded == 0;
  return fmt::format("after {} {} of {} blocks", measuring ? "measuring" : "rounding",
                     std::min(blocks, measuring ? progress.measured : progress.rounded), blocks);
}

int64_t quantising_memory(const QuantiseJob& job, const CalibrationSize& text) {
  const ModelFiles& files = job.model.result();
  const CalibrationSize measured{measured_sequences(text, job.plan), text.sequence_len};
  const int64_t of_blocks = blocks_memory(calibrating(job.recipe), files, job.rounder, measured,
                                          text, rounded_head(files.config, job.plan));
  return checked_add(of_blocks, job.model.merging_bytes);
}

QuantisationReport write_quantised(const QuantiseJob& job, const CalibrationText& text,
                                   QuantisationCheckpoint& checkpoint, ModelOutput& output) try {
  const ModelFiles& files = job.model.result();
  Rounder& rounder = job.rounder;
  QuantisationReport report = job.plan.report();
  report.is_bound = false;
  report.calibration_tokens = text.tokens();
  if (const int64_t asked = calibration_size(job.recipe, files.config).sequences;
      text.sequences < asked) {
    report.notes.push_back(
        fmt::format("calibrated on {}: the text has no more", counted(text.sequences, "sequence")));
  }
  if (!checkpoint.empty()) {
    report.notes.push_back(
        fmt::format("continued {}", progress_text(checkpoint.progress(), files.config)));
  }
  const int64_t booked = quantising_memory(job, text.size()) - job.model.held_bytes;
  require_host_memory(booked, job.recipe,
                      "close other programs, or set calibration_sequences lower",
                      job.model.held_bytes);
  require_disk(job.plan, files.config, text, checkpoint, booked, output);
  const Recipe how = calibrating(job.recipe);
  const BlockWork work{how, files, rounder, checkpoint, job.style};
  // Their values would be refused at the end, and all work before be lost.
  if (checkpoint.empty()) check_weights(how, files, plain_tensors(job), job.style);
  if (rounder.measures()) {
    report.memory = measure_blocks(work, part_of(text, measured_sequences(text.size(), job.plan)));
    rounder.choose(checkpoint.progress().costs, job.style.check);
    set_bits(report, rounder);
  }
  const int64_t memory = round_blocks(work, text, rounded_head(files.config, job.plan));
  report.memory = std::max(report.memory, memory) + job.model.merging_bytes;
  const QuantisationProgress& done = checkpoint.progress();
  for (QuantisedMatrix& matrix : report.matrices) {
    matrix.error = done.errors.at(matrix.weight.name);
  }
  report.notes.insert(report.notes.end(), done.notes.begin(), done.notes.end());
  output.begin({report.bytes, job.plan.largest_file()});
  const auto rounded = [&](const WeightSpec& weight) -> std::vector<TensorBytes> {
    if (!rounder.rounds(weight)) return {};
    const int64_t part = weight.is_block_matrix() ? weight.layer : files.config.num_hidden_layers;
    return checkpoint.read(part, rounder.specs(weight));
  };
  job.written.write(output.path(), text.size(), rounded, job.style);
  report.bytes = output.written_bytes();
  return report;
} catch (const Error& error) {
  // What is kept would be in the way of another format.
  if (refuses_model(error)) checkpoint.remove();
  throw;
}

}  // namespace jackscrew
