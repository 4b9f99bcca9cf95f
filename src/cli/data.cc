// jackscrew data: what a model would read of a file, and what it would learn.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json_object.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "text/batch.h"
#include "text/dataset_builder.h"
#include "text/encode_records.h"
#include "train/evaluate.h"
#include "train/loading.h"

namespace jackscrew {

namespace {

constexpr int64_t kPreviewRecords = 3;
constexpr int64_t kPreviewRead = 1000;  // of each data set, for the warnings
constexpr size_t kPreviewTokens = 400;  // of a record

// What all three read by.
struct Reader {
  explicit Reader(const Recipe& from)
      : recipe(from),
        files(open_model(from.model, from.adapter)),
        tokenizer(make_tokenizer(from.tokenizer, files)),
        options(dataset_options(from, tokenizer)) {}

  // Every record whole, in order; of each data set at most so many (0: all), of one that
  // data_weights leaves out none.
  void records(int64_t most, const EncodedCallback& use) const {
    for (size_t i = 0; i < recipe.data.size(); ++i) {
      if (!recipe.data_weights.empty() && recipe.data_weights[i] == 0.0) continue;
      encode_records(data_files(recipe.data[i], DataPart::train), most, tokenizer, options.examples,
                     options.threads, use);
    }
  }

  const Recipe& recipe;
  ModelFiles files;
  Tokenizer tokenizer;
  DatasetOptions options;
};

void tokenize(const Reader& reader) {
  const auto print = [&](const Record&, const Example& example, const std::string&) {
    if (!reader.recipe.json) {
      fmt::print("{}\n", fmt::join(example.ids, " "));
      return;
    }
    fmt::print("{{\"ids\": [{}], \"train\": [{}]}}\n", fmt::join(example.ids, ", "),
               fmt::join(example.train, ", "));
  };
  reader.records(reader.recipe.max_samples, print);
}

// Leaves of an example what training makes of it, none of it trained where it is left out; says so.
std::string fit_for_training(const Record& record, Example& example, const DatasetOptions& options,
                             const std::string& place) {
  const std::string length = counted(std::ssize(example.ids), "token");
  const int64_t limit = options.sequence_len;
  if (std::holds_alternative<DocumentRecord>(record)) {
    return fmt::format("{} in windows of {}, of which each trains all but its first", length,
                       limit);
  }
  const LengthFit fit = fit_length(example, options, place);
  const int64_t targets = fit == LengthFit::left_out ? 0 : example.target_count();
  if (targets == 0) std::fill(example.train.begin(), example.train.end(), uint8_t{0});
  if (fit == LengthFit::left_out) {
    return fmt::format("{}, left out as longer than {}", length, limit);
  }
  const std::string cut = fit == LengthFit::cut ? fmt::format(", cut to {}", limit) : "";
  if (targets == 0) return fmt::format("{}{}, left out as none is trained", length, cut);
  return fmt::format("{}{}, {} trained", length, cut, targets);
}

void print_marked(const Tokenizer& tokenizer, const Example& example) {
  const bool colour = stdout_colour();
  const std::string begin = colour ? "\x1b[32m" : "[[";
  const std::string end = colour ? "\x1b[0m" : "]]";
  const size_t visible = std::min(example.ids.size(), kPreviewTokens);
  for (size_t from = 0; from < visible;) {
    size_t to = from + 1;
    while (to < visible && example.train[to] == example.train[from]) ++to;
    const std::span<const int32_t> ids(example.ids.data() + from, to - from);
    const TextPlace before = from == 0 ? TextPlace::begin : TextPlace::inside;
    const std::string text = without_controls(tokenizer.decode(ids, false, before));
    const bool trained = example.train[from] != 0;
    fmt::print("{}{}{}", trained ? begin : "", text, trained ? end : "");
    from = to;
  }
  fmt::print("{}\n\n", visible < example.ids.size() ? " ..." : "");
}

void preview(const Reader& reader) {
  int64_t shown = 0;
  DatasetStats stats;
  const int64_t wanted = reader.recipe.max_samples;
  const int64_t most = wanted > 0 ? std::min(wanted, kPreviewRead) : kPreviewRead;
  reader.records(most, [&](const Record& record, Example example, const std::string& place) {
    stats.notes += example.notes;
    if (++shown > kPreviewRecords) return;
    fmt::print("{}: {}\n", place, fit_for_training(record, example, reader.options, place));
    print_marked(reader.tokenizer, example);
  });
  if (shown > kPreviewRecords) {
    fmt::print("and {}{} more records\n", shown >= kPreviewRead ? "at least " : "",
               shown - kPreviewRecords);
  }
  for (const std::string& line : data_warnings(stats)) warn(line);
}

void stats(const Reader& reader) {
  const Recipe& recipe = reader.recipe;
  Dataset data =
      load_datasets(recipe.data, reader.tokenizer, reader.options, stderr_style(recipe.quiet));
  const int64_t repeated = repeated_examples(data);
  if (!recipe.data_weights.empty()) data = data.weighted(recipe.data_weights, recipe.seed);
  const BatchSampler sampler(
      data, {recipe.sequence_len, recipe.micro_batch_size, recipe.gradient_accumulation_steps,
             recipe.packing, recipe.seed});
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < data.size(); ++i) lengths.push_back(data.length(i));
  std::sort(lengths.begin(), lengths.end());
  const DatasetStats& counts = data.stats();
  const auto share = [](int64_t part, int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
  };
  const double mean = share(counts.tokens, counts.examples);
  const int64_t median = lengths[lengths.size() / 2];
  const double trained = share(counts.trained_tokens, counts.tokens);
  if (recipe.json) {
    JsonObject length;
    length.add("shortest", lengths.front()).add("median", median).add("mean", mean);
    length.add("longest", lengths.back());
    JsonObject json;
    json.add("records", counts.records).add("examples", counts.examples);
    json.add("truncated", counts.truncated).add("too_long", counts.too_long);
    json.add("longest_record", counts.longest).add("dropped", counts.dropped);
    json.add("repeated", repeated);
    json.add("tokens", counts.tokens).add("trained_tokens", counts.trained_tokens);
    json.add("trained_share", trained).add("text_bytes", counts.text_bytes);
    json.add("lengths", length).add("rows", sampler.rows_per_epoch());
    json.add("fill_rate", sampler.fill_rate()).add("steps_per_epoch", sampler.steps_per_epoch());
    json.add("warnings", data_warnings(counts));
    fmt::print("{}\n", json.text());
    return;
  }
  fmt::print("records    {}: {} examples, {} cut to {} tokens, {} dropped for want of a target\n",
             counts.records, counts.examples, counts.truncated, recipe.sequence_len,
             counts.dropped);
  if (counts.too_long > 0) {
    fmt::print("           {} left out as longer than {} tokens\n", counts.too_long,
               recipe.sequence_len);
  }
  if (repeated > 0) fmt::print("           {} stand there more than once\n", repeated);
  fmt::print("tokens     {}, of which {} are trained ({:.1f}%)\n", counts.tokens,
             counts.trained_tokens, 100.0 * trained);
  fmt::print("text       {}, {:.2f} bytes to a token\n", human_bytes(counts.text_bytes),
             share(counts.text_bytes, counts.text_tokens));
  fmt::print("lengths    from {} to {}, median {}, mean {:.1f}\n", lengths.front(), lengths.back(),
             median, mean);
  fmt::print("epoch      {} rows of {} tokens, {:.1f}% full ({}); {} steps\n",
             sampler.rows_per_epoch(), recipe.sequence_len, 100.0 * sampler.fill_rate(),
             recipe.packing ? "packed" : "not packed", sampler.steps_per_epoch());
  for (const std::string& line : data_warnings(counts)) warn(line);
}

struct Action {
  const char* name;
  void (*run)(const Reader&);
};
constexpr Action kActions[] = {{"preview", preview}, {"stats", stats}, {"tokenize", tokenize}};

int look_at_data(const Recipe& recipe) {
  const std::string wanted = recipe.operands.empty() ? std::string() : recipe.operands[0];
  const auto* action = std::find_if(std::begin(kActions), std::end(kActions),
                                    [&](const Action& a) { return a.name == wanted; });
  if (action == std::end(kActions)) {
    throw Error(ErrorKind::usage, "data takes `preview`, `stats` or `tokenize`",
                "jackscrew help data shows examples");
  }
  recipe.options.require("model", "data");
  recipe.options.require("data", "data");
  warn_of_unused(recipe, "data", {"eval_data", "val_size", "output"});
  for (const std::string& path : recipe.data) {
    for (const std::string& line : left_out_warnings(path, DataPart::train)) warn(line);
  }
  action->run(Reader(recipe));
  return 0;
}

}  // namespace

int run_data(Arguments arguments) {
  return with_recipe(arguments, 1, "data", look_at_data);
}

}  // namespace jackscrew
