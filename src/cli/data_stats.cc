#include "cli/data_stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/console.h"
#include "base/json_object.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "data/batch.h"
#include "data/dataset_builder.h"
#include "data/example_list.h"
#include "session/loading.h"
#include "session/plan.h"

namespace jackscrew {

namespace {

// What a run would make of the data, beside their counts. Lengths are those of examples, in tokens.
struct DataSummary {
  DatasetStats counts;
  int64_t repeated = 0;
  int64_t shortest = 0, median = 0, longest = 0;
  double mean = 0;
  double trained_share = 0;  // of tokens
  // An epoch is of what val_size leaves.
  int64_t held_out = 0;  // examples
  int64_t rows = 0, steps = 0;
  double fill_rate = 0;
};

double share_of(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

// A recipe's val_size is of its own data, not of others that the command line names.
bool holds_out(const Recipe& recipe) {
  const bool is_of_other_data = recipe.options.origin("data") == kCommandLine &&
                                recipe.options.origin("val_size") != kCommandLine;
  return recipe.val_size > 0 && !is_of_other_data;
}

DataSummary summarise(const Recipe& recipe, const Tokenizer& tokenizer,
                      const DatasetOptions& options, const std::vector<DataPlace>& places) {
  Dataset data = load_datasets(places, tokenizer, options, stderr_style(recipe.quiet),
                               DataPart::train, {.weights = recipe.data_weights});
  DataSummary out;
  out.repeated = repeated_examples(data);
  const auto weighted = [&](Dataset of) {
    return recipe.data_weights.empty() ? std::move(of)
                                       : of.weighted(recipe.data_weights, recipe.seed);
  };
  std::optional<Dataset> left;
  if (holds_out(recipe)) {
    left = data.split(recipe.val_size, recipe.seed, recipe.data_weights).first;
    out.held_out = data.size() - left->size();
    left = weighted(*std::move(left));
  }
  data = weighted(std::move(data));
  const BatchSampler sampler(
      left ? *left : data,
      {recipe.sequence_len, recipe.micro_batch_size, recipe.gradient_accumulation_steps,
       recipe.packing, recipe.seed, virtual_tokens(recipe)});
  std::vector<int64_t> lengths;
  reserve_within_limit(lengths, static_cast<size_t>(data.size()), kExamples);
  for (int64_t i = 0; i < data.size(); ++i) lengths.push_back(data.length(i));
  std::sort(lengths.begin(), lengths.end());
  const size_t half = lengths.size() / 2;
  out.counts = data.stats();
  out.shortest = lengths.front();
  out.median = lengths.size() % 2 == 1 ? lengths[half] : (lengths[half - 1] + lengths[half]) / 2;
  out.longest = lengths.back();
  out.mean = share_of(out.counts.tokens, out.counts.examples);
  out.trained_share = share_of(out.counts.trained_tokens, out.counts.tokens);
  out.rows = sampler.rows_per_epoch();
  out.steps = sampler.steps_per_epoch();
  out.fill_rate = sampler.fill_rate();
  return out;
}

void print_summary_json(const DataSummary& summary) {
  const DatasetStats& counts = summary.counts;
  JsonObject lengths;
  lengths.add("shortest", summary.shortest).add("median", summary.median);
  lengths.add("mean", summary.mean).add("longest", summary.longest);
  JsonObject json;
  json.add("records", counts.records).add("examples", counts.examples);
  json.add("truncated", counts.truncated).add("too_long", counts.too_long);
  json.add("longest_record", counts.longest).add("dropped", counts.dropped);
  json.add("bad_records", counts.bad).add("repeated", summary.repeated);
  json.add("tokens", counts.tokens).add("trained_tokens", counts.trained_tokens);
  json.add("trained_share", summary.trained_share).add("text_bytes", counts.text_bytes);
  json.add("lengths", lengths)
      .add("held_out", summary.held_out)
      .add("rows", summary.rows)
      .add("fill_rate", summary.fill_rate);
  json.add("steps_per_epoch", summary.steps).add("warnings", data_warnings(counts));
  fmt::print("{}\n", json.text());
}

void print_summary(const DataSummary& summary, const Recipe& recipe, int64_t limit) {
  const DatasetStats& counts = summary.counts;
  fmt::print("records    {}: {} used, {} cut to {} tokens, {} skipped (nothing to train on)\n",
             counts.records, counted(counts.examples, "example"), counts.truncated, limit,
             counts.dropped);
  if (counts.too_long > 0) {
    fmt::print("           {} skipped: longer than {} tokens\n", counts.too_long, limit);
  }
  if (summary.repeated > 0) fmt::print("           {}\n", counted(summary.repeated, "duplicate"));
  fmt::print("tokens     {}, {} trained on ({:.1f}%)\n", counts.tokens, counts.trained_tokens,
             100.0 * summary.trained_share);
  fmt::print("text       {}, {:.2f} bytes per token, BOS, EOS and the chat template's among them\n",
             human_bytes(counts.text_bytes), share_of(counts.text_bytes, counts.text_tokens));
  fmt::print("lengths    {} to {} tokens, median {}, mean {:.1f}\n", summary.shortest,
             summary.longest, summary.median, summary.mean);
  fmt::print("epoch      {} of {} tokens, {:.1f}% filled ({}); {}\n",
             counted(summary.rows, "sequence"), recipe.sequence_len, 100.0 * summary.fill_rate,
             recipe.packing ? "packed" : "not packed", counted(summary.steps, "step"));
  if (summary.held_out > 0) {
    fmt::print("           without {} that val_size holds out\n",
               counted(summary.held_out, "example"));
  }
  for (const std::string& line : data_warnings(counts)) warn(line);
}

}  // namespace

void print_data_stats(const Recipe& recipe, const Tokenizer& tokenizer,
                      const DatasetOptions& options, const std::vector<DataPlace>& places) {
  const DataSummary summary = summarise(recipe, tokenizer, options, places);
  if (recipe.json) {
    print_summary_json(summary);
  } else {
    print_summary(summary, recipe, options.sequence_len);
  }
}

}  // namespace jackscrew
