#include "train/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/checked.h"
#include "base/text.h"
#include "report/progress.h"
#include "session/fingerprint.h"
#include "session/plan.h"

namespace jackscrew {

namespace {

void warn_of_unused_evaluation(const std::vector<DataPlace>& data) {
  for (const DataPlace& place : data) {
    if (!place.names(DataPart::evaluation)) continue;
    warn(fmt::format("{0} also holds evaluation files; eval_data={0} uses them",
                     place.path().string()));
  }
}

}  // namespace

RunData read_run_data(const Recipe& recipe, const ModelFiles& files, const Tokenizer& tokenizer,
                      const ProgressStyle& style, OutputClaim& output_dir) {
  RunData data;
  const DatasetOptions options = dataset_options(recipe, tokenizer);
  const auto load = [&](std::span<const DataPlace> places, DataPart part,
                        std::span<const double> weights) {
    const auto token_file = [&](size_t number) {
      data.token_files.push_back(token_file_name(part, number));
      return tokens_directory(output_dir.path()) / data.token_files.back();
    };
    return load_datasets(places, tokenizer, options, style, part, {weights, token_file});
  };
  const std::vector<DataPlace> places = data_places(recipe.data);
  const std::vector<DataPlace> eval_places = data_places(recipe.eval_data);
  data.train = load(places, DataPart::train, recipe.data_weights);
  data.inputs = {data.train.fingerprint(),
                 inputs_fingerprint(files, tokenizer, options.examples.format) +
                     start_fingerprint(recipe.adapter, original_model(recipe))};
  warn_of_data(places, DataPart::train, data.train.stats(), TargetUse::learned);
  if (!recipe.has_evaluation()) warn_of_unused_evaluation(places);
  if (!recipe.eval_data.empty()) {
    data.evaluation = load(eval_places, DataPart::evaluation, {});
    warn_of_data(eval_places, DataPart::evaluation, data.evaluation.stats(), TargetUse::scored);
  } else if (recipe.val_size > 0) {
    std::tie(data.train, data.evaluation) =
        data.train.split(recipe.val_size, recipe.seed, recipe.data_weights);
  }
  data.inputs.held_out = data.evaluation.fingerprint();
  if (!recipe.data_weights.empty()) {
    data.train = data.train.weighted(recipe.data_weights, recipe.seed);
  }
  if (const int64_t leaked = leaked_examples(data.evaluation, data.train); leaked > 0) {
    warn(fmt::format("{} of the {} held-out examples are in the training data too", leaked,
                     data.evaluation.size()));
  }
  data.sample_tokens = answer_tokens(training_use(recipe), files.config, virtual_tokens(recipe));
  data.samples = choose_samples(data.evaluation.size() > 0 ? data.evaluation : data.train,
                                tokenizer, recipe.report_samples, data.sample_tokens);
  return data;
}

BatchOptions run_batches(const Recipe& recipe) {
  return {recipe.sequence_len,
          recipe.micro_batch_size,
          checked_mul(recipe.gradient_accumulation_steps, recipe.data_parallel),
          recipe.packing,
          recipe.seed,
          virtual_tokens(recipe)};
}

DataMemory data_memory(const Recipe& recipe, const RunData& data, const BatchSampler& sampler,
                       int64_t total_steps) {
  const EvaluationBatches scored(data.evaluation, training_use(recipe).tokens,
                                 virtual_tokens(recipe));
  const bool ends_with_the_epoch = total_steps <= sampler.steps_per_epoch();  // which is planned
  return {ends_with_the_epoch ? 0 : sampler.planning_bytes(),
          std::max(sampler.step_bytes(), scored.step_bytes())};
}

std::string leave_out_slow_samples(RunData& data, const OptionSet& options, double peak_flops,
                                   int64_t weight_bytes, const ModelConfig& config) {
  constexpr double kLongest = 60;       // seconds
  constexpr double kShareOfPeak = 0.5;  // roughly what forward passes of short texts reach
  constexpr double kBandwidth = 1e10;   // bytes per second, of a laptop's memory
  if (data.samples.empty() || peak_flops == 0.0) return {};
  if (options.asks_for("report_samples")) return {};
  const double flops = 2.0 * static_cast<double>(config.parameter_count());  // of a token
  const double prompt_token = flops / (kShareOfPeak * peak_flops);           // seconds
  const double answer_token =
      std::max(prompt_token, static_cast<double>(weight_bytes) / kBandwidth);
  double seconds = 0;
  for (const Sample& sample : data.samples) {
    seconds += static_cast<double>(sample.prompt_ids.size()) * prompt_token;
    seconds += kAnswerTokens * answer_token;
  }
  if (seconds <= kLongest) return {};
  const auto count = static_cast<int64_t>(data.samples.size());
  data.samples.clear();
  return fmt::format(
      "samples   none in the report: {} would take about {}, before training and again after",
      counted(count, "answer"), human_duration(seconds));
}

}  // namespace jackscrew
