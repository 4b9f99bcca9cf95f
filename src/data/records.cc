#include "data/records.h"

#include <algorithm>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/map_guard.h"
#include "base/text.h"
#include "data/csv.h"
#include "data/data_files.h"
#include "data/record_json.h"
#include "data/record_refusals.h"
#include "text/utf8.h"

namespace jackscrew {

namespace {

// Bytes of a part of a document: any text that somebody would take for one fits into a part, and
// the part's tokens take little memory.
constexpr size_t kMostOfDocument = size_t{16} << 20;

void require_length(size_t bytes, const std::string& place) {
  if (bytes <= kMostOfRecord) return;
  fail_record(place,
              fmt::format("a record of {}, more than {}", human_bytes(static_cast<int64_t>(bytes)),
                          human_bytes(static_cast<int64_t>(kMostOfRecord))),
              "split it into several records (a quote that is not closed joins rows of a .csv); a "
              "long text may be a .txt file of its own");
}

// The state that all readers share: the file as text, and the receivers of its records and of
// progress.
class Reading {
 public:
  Reading(std::shared_ptr<const MappedFile> map, const FoundCallback& found_callback,
          const ProgressCallback& progress_callback)
      : text(reinterpret_cast<const char*>(map->bytes().data()), map->bytes().size()),
        file(map->path().string()),
        map_(std::move(map)),
        use_(found_callback),
        progress_(progress_callback) {}

  // Passes on a record of `bytes` bytes. `parse(place, fields)` makes it from the mapped file or
  // from data that it captures; it is not called where there are too many of them.
  template <class Parse>
  bool found(std::string place, size_t bytes, Parse parse) const {
    return pass_on({std::move(place), bytes, true, false, {}}, std::move(parse));
  }
  // Passes on a part of a document in the same way; `ends`: the last one wanted.
  template <class Parse>
  bool found_part(size_t bytes, Parse parse, bool ends) const {
    return pass_on({file, bytes, ends, true, {}}, std::move(parse));
  }
  // The next `bytes` bytes of the file are done.
  void report(size_t bytes) {
    // Whoever has parsed a record, or encoded a document, looks at the file's size.
    check_pages(map_->bytes().data(), ErrorKind::data);
    if (progress_ && bytes > 0) progress_(static_cast<int64_t>(bytes));
    done_ += bytes;
    // Pages that will not be read again are released, rarely enough to cost nothing.
    constexpr size_t kChunk = size_t{16} << 20;
    // Bytes that may have been found and not yet parsed: eight of the largest document parts.
    constexpr size_t kPending = 8 * kMostOfDocument;
    if (done_ - released_ < kPending + kChunk) return;
    map_->release(released_, done_ - released_ - kPending);
    released_ = done_ - kPending;
  }

  const std::string_view text;
  const std::string file;  // for messages

 private:
  template <class Parse>
  bool pass_on(FoundRecord record, Parse parse) const {
    record.parse = [map = map_, place = record.place, bytes = record.bytes,
                    parse = std::move(parse)](const RecordFields& fields) {
      require_length(bytes, place);
      return read_whole(
          *map, [&] { return parse(place, fields); }, ErrorKind::data);
    };
    return use_(std::move(record));
  }

  const std::shared_ptr<const MappedFile> map_;
  const FoundCallback& use_;
  const ProgressCallback& progress_;
  size_t done_ = 0;
  size_t released_ = 0;
};

void read_json_lines(Reading& reading) {
  const std::string_view text = reading.text;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const size_t next = std::min(end + 1, text.size());
    ++number;
    const bool has_mark = number == 1 && line.starts_with(kByteOrderMark);
    if (!is_blank(line.substr(has_mark ? kByteOrderMark.size() : 0))) {
      const auto parse = [line](const std::string& place, const RecordFields& fields) {
        return parse_line(line, place, fields);
      };
      if (!reading.found(fmt::format("{}:{}", reading.file, number), line.size(), parse)) return;
    }
    reading.report(next - begin);
    begin = next;
  }
}

// The bytes of JSON up to the first character outside of its texts of which `ends(c, depth)` is
// true, `depth` being the brackets open before it; all of them where there is none. Errors are left
// to the parser.
template <class Ends>
size_t json_size(std::string_view text, const Ends& ends) {
  int64_t depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
      continue;
    }
    quoted = c == '"';
    if (ends(c, depth)) return i;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
  }
  return text.size();
}

// The bytes up to the comma or bracket that ends the first element of an array's remainder.
size_t element_size(std::string_view text) {
  return json_size(text,
                   [](char c, int64_t depth) { return depth == 0 && (c == ',' || c == ']'); });
}

constexpr const char* kJsonSpace = " \t\r\n";

// Whether a text that begins with an object is one object a line: another follows, or it is a line.
bool holds_an_object_a_line(std::string_view text) {
  const size_t end = json_size(text, [](char c, int64_t depth) { return depth == 1 && c == '}'; });
  if (end >= text.size()) return false;
  const bool more = text.find_first_not_of(kJsonSpace, end + 1) != std::string_view::npos;
  return more || text.substr(0, end).find('\n') == std::string_view::npos;
}

// Parses element by element: the array as a whole would take many times its size as a tree.
void read_json_array(Reading& reading) {
  constexpr const char* kHint = "a .json file holds one array of records, or one object a line";
  const std::string_view text = reading.text;
  const auto skip_space = [&](size_t at) {
    return std::min(text.find_first_not_of(kJsonSpace, at), text.size());
  };
  size_t at = skip_space(text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
  if (at < text.size() && text[at] == '{' && holds_an_object_a_line(text.substr(at))) {
    read_json_lines(reading);
    return;
  }
  if (at == text.size()) fail_record(reading.file, "the file is empty", kHint);
  if (text[at] != '[') {
    fail_record(reading.file, "an array of records was expected", kHint);
  }
  at = skip_space(at + 1);
  size_t told = 0;
  bool closed = at < text.size() && text[at] == ']';
  if (closed) ++at;
  for (int64_t number = 1; !closed; ++number) {
    const std::string place = fmt::format("{}, record {}", reading.file, number);
    const size_t end = at + element_size(text.substr(at));
    if (end >= text.size()) fail_record(place, "not valid JSON: the array is not closed", kHint);
    const auto parse = [element = text.substr(at, end - at)](const std::string& where,
                                                             const RecordFields& fields) {
      return to_record(parse_record_json(element, where, kHint, false), where, fields);
    };
    if (!reading.found(place, end - at, parse)) return;
    closed = text[end] == ']';
    at = end + 1;
    if (!closed) {
      reading.report(at - told);
      told = at;
    }
  }
  if (skip_space(at) != text.size()) {
    fail_record(reading.file, "not valid JSON: something follows the array", kHint);
  }
  reading.report(text.size() - told);
}

void require_text(std::string_view field, const std::string& place) {
  constexpr const char* kHint = "save the file as UTF-8";
  if (utf8_valid_prefix(field) != field.size()) {
    fail_record(place, "bytes that are not UTF-8", kHint);
  }
  if (field.find('\0') != field.npos) {
    fail_record(place, "a byte that is 0, as in UTF-16 and in files that are not text", kHint);
  }
}

// The name in lower case, without spaces and tabs around it.
std::string folded(std::string_view name) {
  constexpr const char* kSpace = " \t";
  name.remove_prefix(std::min(name.find_first_not_of(kSpace), name.size()));
  return lower_case(name.substr(0, name.find_last_not_of(kSpace) + 1));
}

// The names of columns, changed so that records are found in columns called "Prompt" or
// " completion". Names that would become equal stay as they are.
std::vector<std::string> folded_keys(const std::vector<std::string>& keys) {
  std::map<std::string, int> columns;  // by what they may be
  for (const std::string& key : keys) ++columns[folded(key)];
  std::vector<std::string> names = keys;
  for (std::string& name : names) {
    if (std::string other = folded(name); columns[other] == 1) name = std::move(other);
  }
  return names;
}

// True and false mark an answer, as they do in .jsonl; another label is a class.
void read_mark(RecordJson& object, const char* key) {
  const auto mark = object.find(key);
  if (mark == object.end()) return;
  const std::string text = lower_case(mark->get<std::string>());
  if (text == "true" || text == "false") *mark = text == "true";
}

// The first row holds the keys.
void read_csv(Reading& reading) {
  const std::string& file = reading.file;
  CsvReader reader(reading.text, file, kMostOfRecord);
  std::vector<std::string> first, row;
  reader.next(first);
  require_length(reader.position(), fmt::format("{}:1", file));
  const auto refuse_separators = [&](std::string_view where) {
    if (where.find_first_of(";\t") == std::string_view::npos) return;
    fail_record(fmt::format("{}:1", file), "the fields are not separated by commas",
                "write the table with commas, or as .jsonl");
  };
  if (reader.complaint()) {
    if (first.size() == 1) refuse_separators(std::string(1, reader.after_quote()));
    throw Error(*reader.complaint());
  }
  const auto shared_keys = std::make_shared<const std::vector<std::string>>(std::move(first));
  const std::vector<std::string>& keys = *shared_keys;
  if (keys.size() > kMostKeys) {
    fail_record(fmt::format("{}:1", file),
                fmt::format("{} columns, more than {}", keys.size(), kMostKeys),
                "the first row names the fields of a record; a record has a few");
  }
  for (const std::string& key : keys) require_text(key, fmt::format("{}:1", file));
  if (keys.size() == 1) refuse_separators(keys[0]);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (std::find(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(i), keys[i]) !=
        keys.begin() + static_cast<std::ptrdiff_t>(i)) {
      fail_record(fmt::format("{}:1", file), fmt::format("column \"{}\" appears twice", keys[i]));
    }
  }
  const auto names = std::make_shared<const std::vector<std::string>>(folded_keys(keys));
  size_t told = 0;
  while (reader.next(row)) {
    const std::string place = fmt::format("{}:{}", file, reader.line());
    const size_t bytes = reader.position() - told;
    const auto parse = [shared_keys, names, row, complaint = reader.complaint()](
                           const std::string& where, const RecordFields& fields) {
      if (complaint) throw Error(*complaint);
      if (row.size() != shared_keys->size()) {
        fail_record(where,
                    fmt::format("{} where the first row has {}", counted(std::ssize(row), "field"),
                                shared_keys->size()),
                    row.size() > shared_keys->size()
                        ? "a field with a comma in it is quoted: \"a, b\""
                        : "write all of them, an empty field as nothing between its commas");
      }
      RecordJson object = RecordJson::object();
      for (size_t i = 0; i < row.size(); ++i) {
        require_text(row[i], where);
        const std::string& key = (*shared_keys)[i];
        object[is_named_field(fields, key) ? key : (*names)[i]] = row[i];
      }
      for (const char* key : kMarks) {
        if (!is_named_field(fields, key)) read_mark(object, key);
      }
      return to_record(object, where, fields);
    };
    if (!reading.found(place, bytes, parse)) return;
    reading.report(bytes);
    told = reader.position();
  }
}

void read_document(Reading& reading, DocumentParts parts) {
  DocumentRecord part{{}, true, false};
  std::string_view rest = reading.text;
  if (rest.starts_with(kByteOrderMark)) {
    rest.remove_prefix(kByteOrderMark.size());
    reading.report(kByteOrderMark.size());
  }
  for (;; part.begins = false) {
    const size_t size = first_part(rest, kMostOfDocument);
    part.text = rest.substr(0, size);
    rest.remove_prefix(size);
    part.ends = rest.empty();
    const auto parse = [part](const std::string&, const RecordFields&) {
      return ParsedRecord{part};
    };
    const bool is_last = part.ends || parts == DocumentParts::first;
    if (!reading.found_part(size, parse, is_last)) return;
    reading.report(size);
    if (is_last) return;
  }
}

// Finds the records of one file.
void find_records_of(const fs::path& file, const FoundCallback& use,
                     const ProgressCallback& progress, DocumentParts parts) {
  if (!is_data_file(file)) {
    throw Error(ErrorKind::data, fmt::format("{}: unknown kind of data file", file.string()),
                unread_hint(file));
  }
  std::shared_ptr<const MappedFile> map;
  try {
    map = std::make_shared<const MappedFile>(file);
  } catch (const Error& error) {
    throw Error(ErrorKind::data, error.what(), error.hint());
  }
  Reading reading(std::move(map), use, progress);
  if (reading.text.starts_with("\xFF\xFE") || reading.text.starts_with("\xFE\xFF")) {
    fail_record(reading.file, "a text in UTF-16", "save it as UTF-8");
  }
  const std::string extension = lower_extension(file);
  if (extension == ".txt") {
    read_document(reading, parts);
  } else if (extension == ".json") {
    read_json_array(reading);
  } else if (extension == ".csv") {
    read_csv(reading);
  } else {
    read_json_lines(reading);
  }
}

}  // namespace

size_t first_part(std::string_view text, size_t limit) {
  if (text.size() <= limit) return text.size();
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  // Behind punctuation, Tekken's pattern takes the slashes after an end of line as well.
  const auto may_begin = [&](char c) { return !is_space(c) && c != '/'; };
  // GPT-2's pattern splits a run of spaces before its last one. Only a lone line break is a piece
  // of its own whatever follows, so cut there first of all.
  for (size_t end = limit; end > 1; --end) {
    if (text[end - 1] == '\n' && !is_space(text[end - 2]) && may_begin(text[end])) return end;
  }
  for (size_t end = limit; end > 0; --end) {
    if (text[end - 1] == '\n' && may_begin(text[end])) return end;
  }
  for (size_t end = limit; end > 0; --end) {
    if (!is_space(text[end - 1]) && text[end] == ' ') return end;
  }
  // A character has at most four bytes; a longer sequence is not UTF-8.
  size_t end = limit;
  while (end + 3 > limit && end > 1 && (static_cast<uint8_t>(text[end]) & 0xC0u) == 0x80u) --end;
  return end;
}

void fail_without_records(const std::string& data, std::span<const fs::path> files) {
  const fs::path& file = files.front();
  const std::string extension = lower_extension(file);
  // What a file without a record holds shows at its beginning; the rest may be more than memory.
  constexpr size_t kShown = size_t{64} << 10;
  const std::string text = read_beginning(file, kShown);
  const size_t begin = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  const char* holds = is_blank(std::string_view(text).substr(begin)) ? "is empty"
                      : extension == ".csv" ? "has names of columns, and no row below them"
                                            : "has an array without an element";
  const char* expected =
      extension == ".csv"
          ? "a row for each record below one with the names of their fields, such as "
            "prompt,completion"
      : extension == ".json"
          ? "an array of records, such as [{\"prompt\": ..., \"completion\": ...}]"
          : "one record a line, such as {\"prompt\": ..., \"completion\": ...}";
  throw Error(
      ErrorKind::data, fmt::format("{} has no record", data),
      fmt::format("{} {}; expected {}", files.size() == 1 ? "the file" : file.filename().string(),
                  holds, expected));
}

void find_records(std::span<const fs::path> files, int64_t max_records, const FoundCallback& use,
                  const ProgressCallback& progress, DocumentParts parts) {
  int64_t left = max_records > 0 ? max_records : INT64_MAX;
  bool wanted = true;
  const auto count = [&](FoundRecord found) {
    if (found.ends) --left;
    wanted = use(std::move(found)) && left > 0;
    return wanted;
  };
  for (const fs::path& file : files) {
    if (wanted) find_records_of(file, count, progress, parts);
  }
}

}  // namespace jackscrew
