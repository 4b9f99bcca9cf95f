#include "train/run_data.h"

#include <fmt/format.h>

#include <tuple>

#include "train/evaluate.h"
#include "train/output_dir.h"
#include "train/progress.h"

namespace jackscrew {

namespace {

// Of what a directory holds and the run does not use.
void warn_of_files(const Recipe& recipe) {
  for (const std::string& path : recipe.data) {
    for (const std::string& warning : left_out_warnings(path, DataPart::train)) warn(warning);
    const bool evaluates = !recipe.eval_data.empty() || recipe.val_size > 0;
    if (!evaluates && names_part(path, DataPart::evaluation)) {
      warn(fmt::format("{0} has files for evaluation, which eval_data={0} would use", path));
    }
  }
  for (const std::string& path : recipe.eval_data) {
    for (const std::string& warning : left_out_warnings(path, DataPart::evaluation)) {
      warn(warning);
    }
  }
}

}  // namespace

RunData read_run_data(const Recipe& recipe, const Tokenizer& tokenizer, const ProgressStyle& style,
                      const fs::path& output_dir) {
  RunData data;
  const DatasetOptions options = dataset_options(recipe, tokenizer);
  const auto load = [&](const std::vector<std::string>& paths, DataPart part, const char* name) {
    return load_datasets(paths, tokenizer, options, style, part,
                         tokens_directory(output_dir) / name);
  };
  data.train = load(recipe.data, DataPart::train, "train");
  for (const std::string& warning : data_warnings(data.train.stats())) warn(warning);
  warn_of_files(recipe);
  if (options.examples.format.uses_clock() && recipe.chat_date == "today") {
    const jinja::DateTime& now = options.examples.format.now;
    warn(fmt::format(
        "the chat template writes the date: only chat_date={:04}-{:02}-{:02} repeats this run",
        now.year, now.month, now.day));
  }
  if (!recipe.eval_data.empty()) {
    data.evaluation = load(recipe.eval_data, DataPart::evaluation, "eval");
  } else if (recipe.val_size > 0) {
    std::tie(data.train, data.evaluation) = data.train.split(recipe.val_size, recipe.seed);
  }
  if (!recipe.data_weights.empty()) {
    data.train = data.train.weighted(recipe.data_weights, recipe.seed);
  }
  if (const int64_t leaked = leaked_examples(data.evaluation, data.train); leaked > 0) {
    warn(fmt::format("{} of the {} held-out examples are in the training data too", leaked,
                     data.evaluation.size()));
  }
  data.samples = choose_samples(data.evaluation.size() > 0 ? data.evaluation : data.train,
                                tokenizer, recipe.report_samples, recipe.sequence_len);
  return data;
}

}  // namespace jackscrew
