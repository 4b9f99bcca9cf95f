// jackscrew eval: measures the loss of a model on a text, with or without adapters.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/console.h"
#include "base/json_object.h"
#include "base/shared_names.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "conversion/compare.h"
#include "data/data_files.h"
#include "report/event_log.h"
#include "report/progress.h"
#include "session/adapter.h"
#include "session/evaluate.h"
#include "session/loading.h"
#include "session/plan.h"

namespace jackscrew {

namespace {

void print_result(const EvalResult& result) {
  fmt::print("loss {:.4f}  perplexity {}", result.loss, perplexity_text(result.perplexity));
  if (result.bytes > 0) fmt::print("  bits/byte {:.4f}", result.bits_per_byte);
  fmt::print("  ({}, {})", counted(result.tokens, "token"), counted(result.records, "record"));
}

// The data to score.
struct HeldOut {
  std::vector<std::string> data;
  double val_size = 0;  // only what this splits off; 0: all
  bool is_all = false;  // `data` of a recipe that holds nothing out
};

// `data` that the command line names, or what the recipe of a training run holds out.
HeldOut held_out(const Recipe& recipe) {
  const OptionSet& options = recipe.options;
  const bool is_named = options.origin("data") == kCommandLine;
  if (is_named || recipe.eval_data.empty()) options.require("data", "eval");
  if (is_named) {
    warn_of_unused(recipe, "eval", {"eval_data", "val_size"}, " beside data");
    return {recipe.data};
  }
  if (recipe.eval_data.empty()) {
    return {recipe.data, recipe.val_size, recipe.val_size <= 0};
  }
  if (!recipe.quiet && options.was_set("data")) {
    write_stderr(fmt::format("scoring eval_data: {}\n", fmt::join(recipe.eval_data, ", ")));
  }
  return {recipe.eval_data};
}

// Whether there are files that are cut into windows.
bool has_documents(std::span<const DataPlace> places, DataPart part) {
  return std::ranges::any_of(places, [&](const DataPlace& place) {
    return std::ranges::any_of(
        place.files(part), [](const fs::path& file) { return lower_extension(file) == ".txt"; });
  });
}

// Says what is scored of the data of a recipe that holds nothing out.
void print_places(std::span<const DataPlace> places) {
  std::vector<std::string> trained, evaluated;
  for (const DataPlace& place : places) {
    const bool has_other_files = place.names(DataPart::evaluation);
    (has_other_files ? evaluated : trained).push_back(place.path().string());
  }
  if (!trained.empty()) {
    write_stderr(fmt::format("scoring the training data: {} (this recipe holds nothing out)\n",
                             fmt::join(trained, ", ")));
  }
  if (!evaluated.empty()) {
    write_stderr(fmt::format("scoring the evaluation files in {}\n", fmt::join(evaluated, ", ")));
  }
}

// The options on the command line by which val_size may hold out other examples.
std::vector<std::string> given_for_split(const OptionSet& options) {
  std::vector<std::string> names = options_of_texts(options);
  for (const char* name : {"val_size", "seed", "data_weights", "sequence_len", "train_on_inputs",
                           "tokenizer", "chat_template"}) {
    names.emplace_back(name);
  }
  std::erase_if(names,
                [&](const std::string& name) { return options.origin(name) != kCommandLine; });
  return names;
}

// What the recipe's run has held out, by its log; empty where there is none.
std::string held_out_by_run(const Recipe& recipe) {
  const fs::path file = recipe.file;
  // Other recipes may lie beside a log that is not theirs.
  if (file.filename() != kRecipeName) return {};
  return held_out_fingerprint(file.parent_path() / kLogName);
}

// Refuses examples other than those that the run has held out: it may have learned them. Warns of
// what may make them others where that cannot be seen: without its log, and of windows of a text,
// which begin elsewhere when their length changes.
void check_split(const Recipe& recipe, const Dataset& held_out, bool has_windows) {
  const std::vector<std::string> given = given_for_split(recipe.options);
  const std::string& now = held_out.fingerprint();
  const std::string then = held_out_by_run(recipe);
  if (!then.empty() && now != then) {
    throw Error(
        ErrorKind::usage,
        fmt::format("{}: the run, which held out other examples, may have learned these: {} now, "
                    "{} then",
                    recipe.file, now, then),
        given.empty() ? "the data have changed, or how they are read; data=FILE scores all of a "
                        "file"
                      : fmt::format("leave out {}, which may differ from the run's; data=FILE "
                                    "scores all of a file",
                                    fmt::join(given, ", ")));
  }
  const bool is_certain = !then.empty() && !has_windows;
  if (is_certain || given.empty() || recipe.options.origin("val_size") == kCommandLine) return;
  warn(
      fmt::format("what val_size in {} holds out depends on {}: if training had other values, it "
                  "has learned some of it",
                  recipe.file, fmt::join(given, ", ")));
}

// What val_size holds out. `reading` reads the data as the run did: its virtual tokens took room
// from texts, whatever is scored.
Dataset load_split(const Recipe& reading, const HeldOut& scored, const Tokenizer& tokenizer,
                   const ProgressStyle& style) {
  warn_of_unused(reading, "eval", {"stride"}, " with val_size");
  const Dataset all = load_texts(reading, scored.data, tokenizer, DataPart::train,
                                 TargetUse::scored, style, reading.data_weights);
  Dataset part = all.split(scored.val_size, reading.seed, reading.data_weights).second;
  check_split(reading, part, has_documents(data_places(scored.data), DataPart::train));
  if (!reading.quiet) {
    write_stderr(fmt::format("scoring what val_size holds out of the data: {} of {} examples\n",
                             part.size(), all.size()));
  }
  return part;
}

// The data sets that are scored whole.
std::vector<Dataset> load_scored(const Recipe& recipe, const HeldOut& scored,
                                 const Tokenizer& tokenizer, const ProgressStyle& style) {
  warn_of_unused(recipe, "eval", {"data_weights"}, " without val_size");
  if (!recipe.random_init) warn_of_unused(recipe, "eval", {"seed"}, " without val_size");
  DatasetOptions options = dataset_options(recipe, tokenizer);
  const std::vector<DataPlace> places = data_places(scored.data);
  if (scored.is_all && !recipe.quiet) print_places(places);
  if (has_documents(places, DataPart::evaluation)) {
    options.stride = recipe.stride;
  } else {
    warn_of_unused(recipe, "eval", {"stride"}, " without a .txt file");
  }
  std::vector<Dataset> parts;
  for (const DataPlace& place : places) {
    parts.push_back(load_dataset(place, tokenizer, options, style, DataPart::evaluation));
    warn_of_data({&place, 1}, DataPart::evaluation, parts.back().stats(), TargetUse::scored);
  }
  return parts;
}

int score(const Recipe& given) {
  const Recipe with_adapter = with_adapter_options(given);
  Recipe recipe = without_training(with_adapter);
  recipe.options.require("model", "eval");
  const HeldOut scored = held_out(recipe);
  const ModelFiles files = open_model(recipe.model, recipe.adapter, recipe.tokenizer);
  require_weights(recipe, files);
  settle_lengths(recipe, files);
  const Tokenizer tokenizer = make_tokenizer(recipe.tokenizer, files);
  const ProgressStyle style = stderr_style(recipe.quiet);
  std::vector<Dataset> parts;
  if (scored.val_size > 0) {
    Recipe reading = recipe;
    // A run's own recipe names its method; with another, train takes the adapter's.
    const bool names_method = given.options.was_set("method") || given.options.was_set("learner");
    const Recipe& trained = names_method ? given : with_adapter;
    reading.learner = trained.learner;
    reading.options = trained.options;  // its prompt_tokens
    parts.push_back(load_split(reading, scored, tokenizer, style));
  } else {
    parts = load_scored(recipe, scored, tokenizer, style);
  }
  const SessionUse use = evaluation_use(recipe, files, parts);
  const auto session = open_session(recipe, files, use, style);
  warn_of_product_parameters(*session);
  EvalResult all;
  std::vector<EvalResult> results;
  for (const Dataset& part : parts) {
    results.push_back(evaluate(*session, part, use.tokens, style));
    all += results.back();
  }
  require_finite_loss(all.loss, recipe.model);
  if (recipe.json) {
    JsonObject json = all.to_json();
    if (results.size() > 1) {
      JsonObject by_file;
      for (size_t i = 0; i < results.size(); ++i) {
        const auto here = scored.data.begin() + static_cast<std::ptrdiff_t>(i);
        const bool named_before = std::find(scored.data.begin(), here, *here) != here;
        if (!named_before) by_file.add(*here, results[i].to_json());
      }
      json.add("data", by_file);
    }
    fmt::print("{}\n", json.text());
    return 0;
  }
  print_result(all);
  fmt::print("\n");
  for (size_t i = 0; results.size() > 1 && i < results.size(); ++i) {
    fmt::print("  ");
    print_result(results[i]);
    fmt::print("  {}\n", one_line(scored.data[i]));
  }
  return 0;
}

}  // namespace

int run_eval(Arguments arguments) {
  return with_recipe(arguments, 0, "eval", score);
}

}  // namespace jackscrew
