#include "data/dataset_builder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "data/encode_records.h"
#include "data/example_list.h"
#include "text/jinja/failure.h"
#include "text/jinja/value.h"
#include "text/tokenizer/tokenizer_json.h"

namespace jackscrew {

namespace {

using Json = nlohmann::json;

// For examples given as tokens, without a tokenizer.
constexpr int64_t kAnyVocabulary = int64_t{1} << 31;

// The bytes of text that an example's targets stand for: without a space that the tokenizer has put
// before it, and without special tokens but those that the text spells out.
int64_t target_bytes(const Example& example, const Tokenizer& tokenizer) {
  int64_t bytes = 0;
  bool first = true;
  for (size_t i = 0; i < example.ids.size(); ++i) {
    const int32_t id = example.ids[i];
    const bool is_target = i > 0 && example.train[i] != 0;
    if (tokenizer.kind(id) == TokenKind::special) {
      const bool is_spelled =
          std::cmp_less(i, example.spelled_ids) && id != tokenizer.data().missing_id;
      if (is_target && is_spelled) bytes += std::ssize(tokenizer.token_bytes(id));
      continue;
    }
    if (is_target) {
      bytes += first ? std::ssize(tokenizer.first_token_bytes(id))
                     : std::ssize(tokenizer.token_bytes(id));
    }
    first = false;
  }
  return bytes;
}

// Calls `use` for each text of a record.
template <typename Use>
struct TextsOf {
  Use use;

  void operator()(const ConversationRecord& record) const {
    for (const Message& message : record.messages) use(message.content);
  }
  void operator()(const CompletionRecord& record) const {
    use(record.prompt);
    use(record.completion);
  }
  void operator()(const TextRecord& record) const { use(record.text); }
  void operator()(const DocumentRecord& record) const { use(record.text); }
};

// What decides on a record's tokens beside the characters of its texts: of which kind it is, where
// each text ends and whose it is, tools and their calls, variables of the template, and which
// answers are context only.
struct Outline {
  int64_t before;  // records

  std::string operator()(const ConversationRecord& record) const {
    std::string out = "conversation\n";
    const auto add = [&](const std::string& name, const jinja::Value& value) {
      out += fmt::format("{}: {}\n", name, jinja::to_json(value, {}));
    };
    if (!record.tools.is_none()) add("tools", record.tools);
    for (const auto& [name, value] : record.variables) add("variable " + name, value);
    for (const Message& message : record.messages) {
      const bool is_context = message.role == "assistant" && !message.trained;
      out += fmt::format("{} {} {}{}\n", message.role, static_cast<int>(message.kind),
                         message.content.size(), is_context ? " context" : "");
      for (const auto& [name, value] : message.fields) add(name, value);
    }
    return out;
  }
  std::string operator()(const CompletionRecord& record) const {
    return fmt::format("pair {} {}{}\n", record.prompt.size(), record.completion.size(),
                       record.tools.is_none() ? "" : " tools");
  }
  std::string operator()(const TextRecord& record) const {
    return fmt::format("text {}\n", record.text.size());
  }
  // A file that is alone is known by its text, in whatever parts it comes.
  std::string operator()(const DocumentRecord& record) const {
    return record.begins && before > 0 ? "file\n" : "";
  }
};

// Visits the counts of DatasetStats that token files have, by their names there: not `room`, which
// is of the options.
template <typename Stats, typename Use>
void for_each_count(Stats& stats, const Use& use) {
  for (const auto& [name, count] : kDatasetCounts) use(name, stats.*count);
  for (const auto& [name, count] : kNoteCounts) use(name, stats.notes.*count);
  use("longest", stats.longest);
}

Json fields_of(const RecordFields& fields) {
  return {fields.messages, fields.instruction, fields.input, fields.output, fields.system,
          fields.tools,    fields.text,        fields.role,  fields.content};
}

// The template's part of a token file's key. With a template that is refused no conversation can be
// read, and texts are read the same whatever it contains.
Json key_of(const ChatTemplate& chat) {
  if (!chat.refusal) return chat.source;
  return {{"refused", chat.refusal->what()}};
}

// What tells a file from what it was before somebody wrote to it.
struct FileState {
  uintmax_t size = 0;
  fs::file_time_type time;
  bool operator==(const FileState&) const = default;
};

std::vector<FileState> states_of(std::span<const fs::path> files) {
  std::vector<FileState> states;
  std::error_code error;  // unreadable files are refused when they are read
  for (const fs::path& file : files) {
    states.push_back({fs::file_size(file, error), fs::last_write_time(file, error)});
  }
  return states;
}

// Throws Error(data): what was read is neither the old text nor the new.
void refuse_changed(std::span<const fs::path> files, std::span<const FileState> before) {
  const std::vector<FileState> now = states_of(files);
  for (size_t i = 0; i < files.size(); ++i) {
    if (now[i] == before[i]) continue;
    throw Error(ErrorKind::data,
                fmt::format("{}: the file was changed while it was read", files[i].string()),
                "run again; nothing may write to it while it is in use");
  }
}

// The key of a token file: everything that its examples depend on.
std::string key_of(std::span<const fs::path> files, std::span<const FileState> states,
                   const Tokenizer& tokenizer, const DatasetOptions& options) {
  Json list = Json::array();
  for (size_t i = 0; i < files.size(); ++i) {
    std::error_code error;
    list.push_back({fs::absolute(files[i], error).string(), states[i].size,
                    states[i].time.time_since_epoch().count()});
  }
  const ChatFormat& format = options.examples.format;
  const TokenizerData& data = tokenizer.data();
  // EOS ends texts, and templates have these; tokenizer.json does not name them.
  Json special = {data.bos, data.eos, data.pad, data.unk};
  for (const auto& [name, id] : format.mentioned_tokens(data)) special.push_back({name, id});
  Json key = {{"files", list},
              {"tokenizer", crc32c(to_tokenizer_json(data))},
              // Characters that a later Unicode has added get other ids by its tables.
              {"unicode", {pattern_unicode_version(), nfc_unicode_version()}},
              {"special", special},
              {"add_bos", tokenizer.add_bos()},
              {"template", key_of(format.general)},
              {"tool_template", key_of(format.tools)},
              {"train_on_inputs", options.examples.train_on_inputs},
              {"sequence_len", options.sequence_len},
              {"long_record", static_cast<int>(options.long_record)},
              {"skip_bad_records", options.skip_bad_records},
              {"fields", fields_of(options.examples.fields)},
              {"max_samples", options.max_samples},
              {"stride", options.stride},
              {"version", JACKSCREW_VERSION}};
  // Otherwise a run that goes on behind midnight would make all of its tokens anew.
  if (format.uses_clock()) key["date"] = {format.now.year, format.now.month, format.now.day};
  // A file's name need not be UTF-8.
  return key.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

LengthFit fit_length(Example& example, const DatasetOptions& options, const std::string& place) {
  if (std::ssize(example.ids) <= options.sequence_len) return LengthFit::whole;
  if (options.long_record == LongRecord::drop) return LengthFit::left_out;
  if (options.long_record == LongRecord::error) {
    throw Error(ErrorKind::data,
                fmt::format("{}: {} tokens, and {} {}", place, example.ids.size(),
                            options.after_virtual ? "what virtual ones leave of sequence_len is"
                                                  : "sequence_len is",
                            options.sequence_len),
                "raise sequence_len, or set excess_length_strategy to truncate or drop");
  }
  example.ids.resize(static_cast<size_t>(options.sequence_len));
  example.train.resize(static_cast<size_t>(options.sequence_len));
  return LengthFit::cut;
}

DatasetBuilder::DatasetBuilder(const Tokenizer* tokenizer, const DatasetOptions& options)
    : tokenizer_(tokenizer),
      options_(options),
      writer_(tokenizer == nullptr ? kAnyVocabulary : tokenizer->vocab_size(), options.token_file,
              options.keep_token_file) {
  if (options.sequence_len < 2) {
    fail(ErrorKind::usage,
         "sequence_len {} is too short: a token is predicted from those before it",
         options.sequence_len);
  }
  if (options.stride > options.sequence_len) {
    throw Error(ErrorKind::usage,
                fmt::format("stride {} is more than the {} tokens of a window", options.stride,
                            options.sequence_len),
                "tokens between the windows would not be scored");
  }
}

void DatasetBuilder::count_text(const Record& record, const std::string& place) {
  const auto count = [&](std::string_view text) {
    stats().text_bytes += std::ssize(text);
    text_crc_.add(text);
  };
  // Before the texts, so that one text is never taken for the end of another.
  try {
    text_crc_.add(std::visit(Outline{stats().records}, record));
  } catch (const jinja::Failure& failure) {
    throw Error(ErrorKind::data, fmt::format("{}: {}", place, failure.what()));
  }
  std::visit(TextsOf<decltype(count)>{count}, record);
}

bool DatasetBuilder::add(const Example& example) {
  if (example.target_count() == 0) return false;
  const int64_t bytes = tokenizer_ == nullptr ? 0 : target_bytes(example, *tokenizer_);
  writer_.add(example, bytes);
  DatasetStats& counts = stats();
  const Dataset::Item item{0, narrow<uint32_t>(counts.examples)};
  append_within_limit(data_.items_, item, kExamples);
  ++counts.examples;
  counts.tokens += std::ssize(example.ids);
  counts.trained_tokens += example.target_count();
  counts.trained_bytes += bytes;
  return true;
}

void DatasetBuilder::add_record(Example example, const std::string& place) {
  DatasetStats& counts = stats();
  ++counts.records;
  counts.notes += example.notes;
  counts.text_tokens += std::ssize(example.ids);
  counts.longest = std::max(counts.longest, static_cast<int64_t>(std::ssize(example.ids)));
  switch (fit_length(example, options_, place)) {
    case LengthFit::whole:
      break;
    case LengthFit::cut:
      ++counts.truncated;
      break;
    case LengthFit::left_out:
      ++counts.too_long;
      return;
  }
  if (!add(example)) ++counts.dropped;
}

// Where windows overlap, a token is a target only in the first that holds it; later windows use it
// as context.
void DatasetBuilder::add_window(std::span<const int32_t> ids) {
  Example window;
  window.ids.assign(ids.begin(), ids.end());
  window.train.assign(ids.size(), 1);
  window.spelled_ids = std::ssize(ids);
  std::fill_n(window.train.begin(), overlap_, uint8_t{0});
  text_used_ = add(window) || text_used_;
}

void DatasetBuilder::add_text(const Example& part) {
  stats().notes += part.notes;
  stats().text_tokens += std::ssize(part.ids);
  const auto window = static_cast<size_t>(options_.sequence_len);
  const size_t stride = options_.stride > 0 ? static_cast<size_t>(options_.stride) : window;
  // A window at a time, since all of a part is millions of tokens.
  for (std::span<const int32_t> rest = part.ids; !rest.empty();) {
    const std::span<const int32_t> ids = rest.first(std::min(window, rest.size()));
    rest = rest.subspan(ids.size());
    text_.insert(text_.end(), ids.begin(), ids.end());
    size_t begin = 0;
    for (; text_.size() - begin >= window; begin += stride) {
      add_window(std::span(text_).subspan(begin, window));
      overlap_ = window - stride;
    }
    text_.erase(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

void DatasetBuilder::end_text() {
  ++stats().records;
  // A last window of one token would predict nothing.
  if (text_.size() > std::max<size_t>(overlap_, 1)) add_window(text_);
  if (!text_used_) ++stats().dropped;
  text_.clear();
  overlap_ = 0;
  text_used_ = false;
}

std::string DatasetBuilder::fingerprint_text(int64_t records, int64_t bytes, uint32_t crc32c) {
  return fmt::format("{} of {}, checksum {:08x}", counted(records, "record"),
                     counted(bytes, "byte"), crc32c);
}

Dataset DatasetBuilder::finish(const std::string& key) {
  const DatasetStats& counts = stats();
  data_.fingerprint_ = fingerprint_text(counts.records, counts.text_bytes, text_crc_.value());
  Json trailer = {
      {"key", key}, {"fingerprint", data_.fingerprint_}, {"first_bad", counts.first_bad}};
  trailer["named_fields"] = counts.notes.named_fields;
  trailer["unread"] = counts.notes.unread;
  for_each_count(counts, [&](const char* name, int64_t count) { trailer[name] = count; });
  data_.stores_.push_back(
      writer_.finish(trailer.dump(-1, ' ', false, Json::error_handler_t::replace)));
  return std::move(data_);
}

std::optional<Dataset> DatasetBuilder::reopen(const fs::path& token_file, const std::string& key,
                                              const Tokenizer& tokenizer) {
  auto file = TokenFile::open(token_file, tokenizer.vocab_size());
  if (!file) return std::nullopt;
  const Json trailer = Json::parse(file->trailer, nullptr, false);
  const auto text = [&](const char* name) {
    const auto found = trailer.find(name);
    return found != trailer.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (!trailer.is_object() || text("key") != key) return std::nullopt;
  Dataset data;
  bool whole = true;
  for_each_count(data.stats_, [&](const char* name, int64_t& count) {
    const auto found = trailer.find(name);
    whole = whole && found != trailer.end() && found->is_number_integer();
    if (whole) count = found->get<int64_t>();
  });
  if (!whole || data.stats_.examples != file->store->size()) return std::nullopt;
  data.fingerprint_ = text("fingerprint");
  data.stats_.first_bad = text("first_bad");
  const auto read_counts = [&](const char* name, RecordCounts& counts) {
    const Json found = trailer.value(name, Json::object());
    for (const auto& [what, count] : found.items()) {
      if (count.is_number_integer()) counts[what] = count.get<int64_t>();
    }
  };
  read_counts("named_fields", data.stats_.notes.named_fields);
  read_counts("unread", data.stats_.notes.unread);
  reserve_within_limit(data.items_, static_cast<size_t>(file->store->size()), kExamples);
  for (int64_t i = 0; i < file->store->size(); ++i) data.items_.push_back({0, narrow<uint32_t>(i)});
  data.stores_.push_back(std::move(file->store));
  return data;
}

Dataset Dataset::read(const DataPlace& from, const Tokenizer& tokenizer,
                      const DatasetOptions& options, DataPart part,
                      const ProgressCallback& progress) {
  const std::vector<fs::path> files = from.files(part);
  const int64_t room = options.after_virtual ? options.sequence_len : 0;
  const std::vector<FileState> states = states_of(files);
  std::string key;
  if (!options.token_file.empty() && options.keep_token_file) {
    key = key_of(files, states, tokenizer, options);
    if (auto kept = DatasetBuilder::reopen(options.token_file, key, tokenizer)) {
      kept->stats_.room = room;
      return std::move(*kept);
    }
  }
  DatasetBuilder builder(&tokenizer, options);
  DatasetStats& counts = builder.stats();
  counts.room = room;
  const auto bad = [&](const Error& error) {
    if (options.skip_bad_records) return counts.add_bad(error.what());
    throw Error(error.kind(), error.what(),
                fmt::format("{}{}on_bad_record=skip leaves such records out", error.hint(),
                            error.hint().empty() ? "" : "; "));
  };
  const auto use = [&](const Record& record, Example example, const std::string& place) {
    try {
      builder.count_text(record, place);
    } catch (const Error& error) {
      return bad(error);
    }
    if (const auto* document = std::get_if<DocumentRecord>(&record)) {
      builder.add_text(example);
      if (document->ends) builder.end_text();
    } else {
      builder.add_record(std::move(example), place);
    }
  };
  encode_records(files, options.max_samples, tokenizer, options.examples, options.threads, use,
                 progress, bad);
  refuse_changed(files, states);
  if (counts.records == 0) fail_without_records(from.path().string(), files);
  if (counts.examples == 0) {
    const std::string none =
        counts.records == 1 ? "its only record has no token"
                            : fmt::format("none of its {} records has a token", counts.records);
    throw Error(ErrorKind::data,
                fmt::format("{}: {} to {} on", from.path().string(), none,
                            part == DataPart::train ? "train" : "evaluate"),
                counts.bad > 0         ? fmt::format("{} cannot be read; the first: {}",
                                                     counted(counts.bad, "record"), counts.first_bad)
                : counts.truncated > 0 ? "raise sequence_len: answers are cut off"
                : counts.too_long > 0  ? "raise sequence_len: records are longer"
                : counts.notes.untrainable > 0
                    ? "answers cannot be told from prompts in this chat "
                      "template; set another with chat_template="
                    : "its texts and answers are missing, empty, or left out "
                      "by weight or train");
  }
  return builder.finish(key);
}

}  // namespace jackscrew
