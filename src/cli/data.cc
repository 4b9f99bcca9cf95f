// jackscrew data: shows what a model would read of data files, and what it would learn.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/console.h"
#include "base/error.h"
#include "base/json_object.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/data_stats.h"
#include "data/dataset_builder.h"
#include "data/encode_records.h"
#include "session/adapter.h"
#include "session/loading.h"
#include "session/plan.h"

namespace jackscrew {

namespace {

constexpr int64_t kPreviewRecords = 3;
constexpr int64_t kPreviewRead = 1000;  // of each data set, for the warnings
constexpr size_t kPreviewTokens = 400;  // of a record
constexpr size_t kPreviewBytes = 2000;  // of a text, if there are no tokens
// Enough that a call costs little, few enough that their text is small.
constexpr size_t kPrintedAtOnce = 4096;  // tokens

// The recipe as training resolves it: a tokenizer alone has no positions that limit it.
Recipe settled(const Recipe& given, const ModelFiles& files) {
  Recipe recipe = with_adapter_options(given);
  if (files.config.vocab_size > 0) settle_lengths(recipe, files);
  return recipe;
}

// Shared by all three subcommands: the recipe, tokenizer and data files.
struct Reader {
  explicit Reader(const Recipe& given)
      : files(open_tokenizer(given.model, given.adapter, given.tokenizer)),
        recipe(settled(given, files)),
        tokenizer(make_tokenizer(recipe.tokenizer, files)),
        options(dataset_options(recipe, tokenizer)),
        places(data_places(recipe.data)) {}

  // Visits every record, in order: at most `most` of each data set (0: all), none of a data set
  // with weight 0; of a document these parts.
  void records(int64_t most, const EncodedCallback& use, const BadRecordCallback& bad,
               DocumentParts parts) const {
    for (size_t i = 0; i < places.size(); ++i) {
      if (!is_read(recipe.data_weights, i)) continue;
      encode_records(places[i].files(DataPart::train), most, tokenizer, options.examples,
                     options.threads, use, {}, options.skip_bad_records ? bad : BadRecordCallback(),
                     parts);
    }
  }

  ModelFiles files;
  Recipe recipe;
  Tokenizer tokenizer;
  DatasetOptions options;
  std::vector<DataPlace> places;  // recipe.data
};

void require_records(const Recipe& recipe, const std::vector<DataPlace>& places,
                     const DatasetStats& stats) {
  if (stats.records > 0) return;
  std::vector<fs::path> files;
  for (size_t i = 0; i < places.size(); ++i) {
    if (!is_read(recipe.data_weights, i)) continue;
    for (const fs::path& file : places[i].files(DataPart::train)) files.push_back(file);
  }
  fail_without_records(fmt::format("{}", fmt::join(recipe.data, ", ")), files);
}

// Prints a record's tokens as a line, a piece at a time: as text a long record is several times as
// large as its tokens.
class TokenLine {
 public:
  explicit TokenLine(bool json) : json_(json) {}

  void begin() {
    if (is_open_) end();  // of a document whose end could not be read
    is_open_ = true;
    has_numbers_ = false;
    if (json_) fmt::print("{{\"ids\": [");
  }
  // All of the record, or of a document the next part.
  void add(Example example) {
    print_numbers<int32_t>(example.ids);
    if (!json_) return;
    if (train_.empty()) {
      train_ = std::move(example.train);
      if (!train_.empty()) train_.front() = 0;  // nothing predicts the first token
    } else {
      train_.insert(train_.end(), example.train.begin(), example.train.end());
    }
  }
  void end() {
    if (json_) {
      fmt::print("], \"train\": [");
      has_numbers_ = false;
      print_numbers<uint8_t>(train_);
      fmt::print("]}}");
      train_ = {};
    }
    fmt::print("\n");
    is_open_ = false;
  }

 private:
  template <typename T>
  void print_numbers(std::span<const T> numbers) {
    const std::string_view separator = json_ ? ", " : " ";
    while (!numbers.empty()) {
      const auto piece = numbers.first(std::min(numbers.size(), kPrintedAtOnce));
      fmt::print("{}{}", has_numbers_ ? separator : "", fmt::join(piece, separator));
      has_numbers_ = true;
      numbers = numbers.subspan(piece.size());
    }
  }

  bool json_;
  bool is_open_ = false;        // a line has begun and has no end yet
  bool has_numbers_ = false;    // in the list that is being printed
  std::vector<uint8_t> train_;  // of the record so far: they follow all ids
};

void tokenize(const Reader& reader) {
  DatasetStats stats;
  TokenLine printed(reader.recipe.json);
  const auto print = [&](const Record& record, Example example, const std::string&) {
    stats.notes +=
        RecordNotes{.named_fields = example.notes.named_fields, .unread = example.notes.unread};
    const auto* document = std::get_if<DocumentRecord>(&record);
    if (document == nullptr || document->begins) printed.begin();
    printed.add(std::move(example));
    if (document != nullptr && !document->ends) return;
    ++stats.records;
    printed.end();
  };
  reader.records(
      reader.recipe.max_samples, print, [&](const Error& error) { stats.add_bad(error.what()); },
      DocumentParts::all);
  require_records(reader.recipe, reader.places, stats);
  for (const std::string& line : data_warnings(stats)) warn(line);
}

// Reduces an example to what training makes of it, with no trained token if it is left out; returns
// a note on that.
std::string fit_for_training(const Record& record, Example& example, const DatasetOptions& options,
                             const std::string& place) {
  const std::string length = counted(std::ssize(example.ids), "token");
  const int64_t limit = options.sequence_len;
  if (!example.train.empty()) example.train.front() = 0;  // nothing predicts the first token
  if (const auto* document = std::get_if<DocumentRecord>(&record)) {
    return fmt::format("{} in windows of {}; all but the first of each are trained on",
                       document->ends ? length : "tokens", limit);
  }
  const LengthFit fit = fit_length(example, options, place);
  const int64_t targets = fit == LengthFit::left_out ? 0 : example.target_count();
  if (targets == 0) std::fill(example.train.begin(), example.train.end(), uint8_t{0});
  if (fit == LengthFit::left_out) {
    return fmt::format("{}, skipped: longer than {}", length, limit);
  }
  const std::string cut = fit == LengthFit::cut ? fmt::format(", cut to {}", limit) : "";
  if (targets == 0) return fmt::format("{}{}, skipped: nothing to train on", length, cut);
  return fmt::format("{}{}, {} trained on", length, cut, targets);
}

// A text as it is displayed: trained parts in green, or in brackets.
std::string marked(std::string_view text, bool trained) {
  std::string visible;  // a carriage return is no damage, but it is trained on like all else
  for (const char c : text) visible += c == '\r' ? std::string("\\r") : std::string(1, c);
  const std::string shown = without_controls(visible);
  if (!trained) return shown;
  return stdout_colour() ? "\x1b[32m" + shown + "\x1b[0m" : "[[" + shown + "]]";
}

void print_marked(const Tokenizer& tokenizer, const Example& example) {
  const size_t visible = std::min(example.ids.size(), kPreviewTokens);
  StreamDecoder decoder(tokenizer, false);  // a character may have tokens of both kinds
  for (size_t from = 0; from < visible;) {
    size_t to = from;
    std::string text;
    while (to < visible && example.train[to] == example.train[from]) {
      text += decoder.push(example.ids[to++]);
    }
    if (to == visible) text += decoder.finish();
    fmt::print("{}", marked(text, example.train[from] != 0));
    from = to;
  }
  fmt::print("{}\n\n", visible < example.ids.size() ? " ..." : "");
}

int64_t preview_limit(const Recipe& recipe) {
  return recipe.max_samples > 0 ? std::min(recipe.max_samples, kPreviewRead) : kPreviewRead;
}

// `seen` of the records that were read could be read.
void print_rest(int64_t seen, int64_t read) {
  if (seen <= kPreviewRecords) return;
  fmt::print("and {}{} more records\n", read >= kPreviewRead ? "at least " : "",
             seen - kPreviewRecords);
}

// Of each data set at most `most` records were read: a key that none of them has may be in others.
void warn_of_previewed(const DatasetStats& stats, int64_t most) {
  const bool all_read = stats.records < most;
  for (const std::string& line : data_warnings(stats, TargetUse::learned, all_read)) warn(line);
}

void preview(const Reader& reader) {
  int64_t shown = 0;
  DatasetStats stats;
  const int64_t most = preview_limit(reader.recipe);
  const auto show = [&](const Record& record, Example example, const std::string& place) {
    stats.notes += example.notes;
    ++stats.records;
    if (++shown > kPreviewRecords) return;
    fmt::print("{}: {}\n", one_line(place),
               fit_for_training(record, example, reader.options, place));
    print_marked(reader.tokenizer, example);
  };
  reader.records(
      most, show, [&](const Error& error) { stats.add_bad(error.what()); }, DocumentParts::first);
  require_records(reader.recipe, reader.places, stats);
  print_rest(shown, stats.records);
  warn_of_previewed(stats, most);
}

// Prints a record as it is read, before tokenizer and template: what it is, then its texts.
class RecordPrinter {
 public:
  RecordPrinter(const std::string& place, bool all_trained)
      : place_(place), all_trained_(all_trained) {}

  void operator()(const ConversationRecord& record) const {
    title(fmt::format("conversation of {}{}", counted(std::ssize(record.messages), "message"),
                      record.tools.is_none() ? "" : ", with tools"));
    for (const Message& message : record.messages) {
      line(message.role, message.content, message.role == "assistant" && message.trained);
    }
  }
  void operator()(const CompletionRecord& record) const {
    title("prompt and completion");
    line("prompt", record.prompt, false);
    line("completion", record.completion, true);
  }
  void operator()(const TextRecord& record) const {
    title("text");
    line("text", record.text, true);
  }
  void operator()(const DocumentRecord& record) const {
    title("text file, cut into windows of sequence_len");
    line("text", record.text, true);
  }

 private:
  void title(const std::string& what) const { fmt::print("{}: {}\n", place_, what); }
  void line(const std::string& name, std::string_view text, bool trained) const {
    // Not within a UTF-8 character: continuation bytes begin with bits 10.
    size_t size = std::min(text.size(), kPreviewBytes);
    while (size > 0 && size < text.size() && (static_cast<uint8_t>(text[size]) & 0xC0u) == 0x80u) {
      --size;
    }
    fmt::print("  {}: {}{}\n", one_line(name),
               marked(text.substr(0, size), trained || all_trained_),
               size < text.size() ? " ..." : "");
  }

  const std::string& place_;
  bool all_trained_;
};

void preview_records(const Recipe& recipe, const std::vector<DataPlace>& places) {
  int64_t shown = 0;
  DatasetStats stats;
  const int64_t most = preview_limit(recipe);
  const auto show = [&](const FoundRecord& found) {
    try {
      require_memory_to_parse(found);
      const auto [record, named, unread] = found.parse(recipe.fields);
      ++stats.records;
      stats.notes += RecordNotes{
          .empty = has_empty_text(record) ? 1 : 0, .named_fields = named, .unread = unread};
      if (++shown > kPreviewRecords) return true;
      std::visit(RecordPrinter(found.place, recipe.train_on_inputs), record);
      fmt::print("\n");
    } catch (const Error& error) {
      if (!recipe.skip_bad_records || error.kind() != ErrorKind::data) throw;
      stats.add_bad(error.what());
    }
    return true;
  };
  for (size_t i = 0; i < places.size(); ++i) {
    if (is_read(recipe.data_weights, i)) {
      find_records(places[i].files(DataPart::train), most, show, {}, DocumentParts::first);
    }
  }
  require_records(recipe, places, stats);
  print_rest(shown, stats.records);
  warn_of_previewed(stats, most);
  if (!recipe.quiet) {
    write_stderr(
        "records as they are read; add model=MODEL to see their tokens and what is trained on\n");
  }
}

void stats(const Reader& reader) {
  print_data_stats(reader.recipe, reader.tokenizer, reader.options, reader.places);
}

struct Action {
  const char* name;
  void (*run)(const Reader&);
};
constexpr Action kActions[] = {{"preview", preview}, {"stats", stats}, {"tokenize", tokenize}};

// Warns of options of what a run does after the part of it that is shown.
void warn_of_later(const Recipe& recipe, const std::string& action, bool has_tokenizer) {
  const std::string command = "data " + action;
  if (action == "stats") return;
  warn_of_unused(
      recipe, command,
      {"packing", "micro_batch_size", "gradient_accumulation_steps", "seed", "val_size"});
  // Which data sets are read is all that they say here.
  const bool leaves_out = std::ranges::find(recipe.data_weights, 0.0) != recipe.data_weights.end();
  if (!leaves_out) warn_of_unused(recipe, command, {"data_weights"}, " without a 0 in it");
  std::vector<std::string> of_examples = {"sequence_len", "excess_length_strategy",
                                          "prompt_tokens"};
  if (action == "tokenize") warn_of_unused(recipe, command, of_examples);
  if (has_tokenizer) return;
  for (const char* name : {"chat_template", "chat_date", "threads"}) of_examples.emplace_back(name);
  warn_of_unused(recipe, command, of_examples, " without a tokenizer");
}

int look_at_data(const Recipe& recipe) {
  const std::string wanted = recipe.operands.empty() ? std::string() : recipe.operands[0];
  const auto* action = std::find_if(std::begin(kActions), std::end(kActions),
                                    [&](const Action& a) { return a.name == wanted; });
  if (action == std::end(kActions)) {
    throw Error(ErrorKind::usage, "data takes `preview`, `stats` or `tokenize`",
                "jackscrew help data shows examples");
  }
  if (wanted == "preview" && recipe.json) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: data preview has no JSON", recipe.options.origin("json")),
                "leave json out; data stats and data tokenize take it");
  }
  recipe.options.require("data", "data");
  const bool has_tokenizer = !recipe.model.empty() || recipe.tokenizer != "auto";
  const bool records_only = wanted == "preview" && !has_tokenizer;
  if (!records_only && !has_tokenizer) {
    throw Error(ErrorKind::usage, fmt::format("data {} needs a tokenizer", wanted),
                "give model=MODEL, or tokenizer=DIR; data preview shows records without one");
  }
  warn_of_later(recipe, wanted, has_tokenizer);
  warn_of_weights(recipe);
  const auto warn_of_files = [](const std::vector<DataPlace>& places) {
    for (const DataPlace& place : places) {
      for (const std::string& line : place.left_out_warnings(DataPart::train)) warn(line);
    }
  };
  if (records_only) {
    const std::vector<DataPlace> places = data_places(recipe.data);
    warn_of_files(places);
    preview_records(recipe, places);
  } else {
    const Reader reader(recipe);
    warn_of_files(reader.places);
    action->run(reader);
  }
  return 0;
}

}  // namespace

int run_data(Arguments arguments) {
  return with_recipe(arguments, 1, "data", look_at_data);
}

}  // namespace jackscrew
