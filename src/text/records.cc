#include "text/records.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json_object.h"
#include "base/text.h"
#include "text/csv.h"

namespace jackscrew {

namespace {

using Json = nlohmann::json;

constexpr const char* kExpected =
    "a record has messages, conversations, instruction and output, prompt and completion, or text";

[[noreturn]] void fail_record(const std::string& place, const std::string& what,
                              const char* hint = kExpected) {
  throw Error(ErrorKind::data, fmt::format("{}: {}", place, what), hint);
}

// The string at `key`, which must be there.
std::string required(const Json& object, const char* key, const std::string& place) {
  const auto found = object.find(key);
  if (found == object.end()) fail_record(place, fmt::format("\"{}\" is missing", key));
  if (!found->is_string()) {
    fail_record(place, fmt::format("\"{}\" is {}, expected text", key, found->type_name()));
  }
  return found->get<std::string>();
}

// The string at `key`; empty where it is missing or null.
std::string text_or_empty(const Json& object, const char* key, const std::string& place) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? std::string() : required(object, key, place);
}

std::string role_of(const std::string& name, const std::string& place) {
  static const std::vector<std::pair<std::string, std::string>> kRoles = {
      {"system", "system"},     {"user", "user"},       {"assistant", "assistant"},
      {"tool", "tool"},         {"human", "user"},      {"gpt", "assistant"},
      {"chatgpt", "assistant"}, {"model", "assistant"}, {"observation", "tool"}};
  std::vector<std::string> names;
  for (const auto& [alias, role] : kRoles) {
    if (alias == name) return role;
    names.push_back(alias);
  }
  const auto nearest = nearest_name(name, names);
  const std::string hint = nearest ? fmt::format("did you mean \"{}\"?", *nearest)
                                   : fmt::format("known roles: {}", fmt::join(names, ", "));
  throw Error(ErrorKind::data, fmt::format("{}: unknown role \"{}\"", place, name), hint);
}

// OpenAI's `weight` (0 or 1) and axolotl's `train` (true or false) on one message.
bool trained_flag(const Json& message, const std::string& place) {
  if (const auto train = message.find("train"); train != message.end()) {
    if (!train->is_boolean()) fail_record(place, "\"train\" is not true or false");
    return train->get<bool>();
  }
  if (const auto weight = message.find("weight"); weight != message.end()) {
    if (*weight != 0 && *weight != 1) fail_record(place, "\"weight\" is not 0 or 1");
    return *weight == 1;
  }
  return true;
}

ConversationRecord conversation(const Json& list, const char* list_key, const char* role_key,
                                const char* content_key, const std::string& place) {
  if (!list.is_array() || list.empty()) {
    fail_record(place, fmt::format("\"{}\" is not a list of messages", list_key));
  }
  ConversationRecord record;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& item = list[i];
    const std::string item_place = fmt::format("{}, message {}", place, i + 1);
    if (!item.is_object()) fail_record(item_place, "an object was expected");
    record.messages.push_back({role_of(required(item, role_key, item_place), item_place),
                               required(item, content_key, item_place),
                               trained_flag(item, item_place)});
  }
  return record;
}

Record to_record(const Json& object, const std::string& place) {
  if (!object.is_object()) {
    fail_record(place, fmt::format("an object was expected, found {}", object.type_name()));
  }
  if (object.contains("messages")) {
    return conversation(object["messages"], "messages", "role", "content", place);
  }
  if (object.contains("conversations")) {
    return conversation(object["conversations"], "conversations", "from", "value", place);
  }
  if (object.contains("instruction")) {
    std::string question = required(object, "instruction", place);
    if (const std::string input = text_or_empty(object, "input", place); !input.empty()) {
      question += "\n\n" + input;
    }
    ConversationRecord record;
    if (std::string system = text_or_empty(object, "system", place); !system.empty()) {
      record.messages.push_back({"system", std::move(system)});
    }
    record.messages.push_back({"user", std::move(question)});
    record.messages.push_back({"assistant", required(object, "output", place)});
    return record;
  }
  if (object.contains("prompt")) {
    return CompletionRecord{required(object, "prompt", place),
                            required(object, "completion", place)};
  }
  if (object.contains("text")) return TextRecord{required(object, "text", place)};
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  fail_record(place, fmt::format("nothing to train on among its keys ({})",
                                 keys.empty() ? "none" : fmt::format("{}", fmt::join(keys, ", "))));
}

Json parse_json(std::string_view text, const std::string& place, const char* hint, bool one_line) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail_record(place, fmt::format("not valid JSON: {}", json_complaint(error.what(), one_line)),
                hint);
  }
}

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension;
}

bool is_data_file(const fs::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".jsonl" || extension == ".json" || extension == ".csv" ||
         extension == ".txt";
}

// The part that a file's name chooses, if any: "train.jsonl", "test-01.json".
std::optional<DataPart> named_part(const fs::path& path) {
  static const std::vector<std::pair<std::string_view, DataPart>> kNames = {
      {"train", DataPart::train}, {"validation", DataPart::valid}, {"valid", DataPart::valid},
      {"eval", DataPart::valid},  {"dev", DataPart::valid},        {"test", DataPart::test}};
  const std::string stem = path.stem().string();
  for (const auto& [name, part] : kNames) {
    if (!stem.starts_with(name)) continue;
    if (stem.size() == name.size() ||
        std::isalnum(static_cast<unsigned char>(stem[name.size()])) == 0) {
      return part;
    }
  }
  return std::nullopt;
}

void read_json_lines(std::string_view text, const std::string& file,
                     const std::function<void(const Record&, const std::string&)>& use,
                     const ProgressCallback& progress) {
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const size_t next = std::min(end + 1, text.size());
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      const std::string place = fmt::format("{}:{}", file, number);
      use(parse_record(line, place), place);
    }
    if (progress) progress(static_cast<int64_t>(next - begin));
    begin = next;
  }
}

void read_json_array(std::string_view text, const std::string& file,
                     const std::function<void(const Record&, const std::string&)>& use,
                     const ProgressCallback& progress) {
  constexpr const char* kHint =
      "a .json file holds one array of records; one object a line is .jsonl";
  const Json root = parse_json(text, file, kHint, false);
  if (!root.is_array()) fail_record(file, "an array of records was expected", kHint);
  for (size_t i = 0; i < root.size(); ++i) {
    const std::string place = fmt::format("{}, record {}", file, i + 1);
    use(to_record(root[i], place), place);
    // Where in the file a record ends is not known; together they are all of it.
    const auto bytes_until = [&](size_t record) { return text.size() * record / root.size(); };
    if (progress) progress(static_cast<int64_t>(bytes_until(i + 1) - bytes_until(i)));
  }
}

// The first row names the keys.
void read_csv(std::string_view text, const std::string& file,
              const std::function<void(const Record&, const std::string&)>& use,
              const ProgressCallback& progress) {
  CsvReader reader(text, file);
  std::vector<std::string> keys, fields;
  reader.next(keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (std::find(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(i), keys[i]) !=
        keys.begin() + static_cast<std::ptrdiff_t>(i)) {
      fail_record(fmt::format("{}:1", file), fmt::format("column \"{}\" appears twice", keys[i]));
    }
  }
  size_t told = 0;
  while (reader.next(fields)) {
    const std::string place = fmt::format("{}:{}", file, reader.line());
    if (fields.size() != keys.size()) {
      fail_record(place,
                  fmt::format("{} where the first row has {}", counted(std::ssize(fields), "field"),
                              keys.size()),
                  "a field with a comma in it is quoted: \"a, b\"");
    }
    Json object = Json::object();
    for (size_t i = 0; i < keys.size(); ++i) object[keys[i]] = fields[i];
    use(to_record(object, place), place);
    if (progress) progress(static_cast<int64_t>(reader.position() - told));
    told = reader.position();
  }
}

}  // namespace

Record parse_record(std::string_view json, const std::string& place) {
  return to_record(parse_json(json, place, "every line holds one JSON object", true), place);
}

std::vector<fs::path> data_files(const fs::path& path, DataPart part) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw Error(ErrorKind::data, fmt::format("{} does not exist", path.string()), "check the path");
  }
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.is_regular_file() && is_data_file(entry.path())) all.push_back(entry.path());
  }
  if (error) fail(ErrorKind::data, "cannot list {}: {}", path.string(), error.message());
  std::sort(all.begin(), all.end());
  const bool named = std::any_of(all.begin(), all.end(),
                                 [](const fs::path& file) { return named_part(file).has_value(); });
  std::vector<fs::path> files;
  for (const fs::path& file : all) {
    if (named ? named_part(file) == part : part == DataPart::train) files.push_back(file);
  }
  if (files.empty() && part == DataPart::train) {
    throw Error(
        ErrorKind::data, fmt::format("{} holds no training files", path.string()),
        ".jsonl, .json, .csv and .txt files are read; names that begin with valid or test are not "
        "for training");
  }
  return files;
}

void read_records(const fs::path& file,
                  const std::function<void(const Record&, const std::string&)>& use,
                  const ProgressCallback& progress) {
  if (!is_data_file(file)) {
    throw Error(ErrorKind::data, fmt::format("{}: unknown kind of data file", file.string()),
                ".jsonl, .json, .csv and .txt are read");
  }
  MappedFile map;
  try {
    map = MappedFile(file);
  } catch (const Error& error) {
    throw Error(ErrorKind::data, error.what(), error.hint());
  }
  const auto bytes = map.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string extension = lower_extension(file);
  if (extension == ".txt") {
    use(DocumentRecord{std::string(text)}, file.string());
  } else if (extension == ".json") {
    read_json_array(text, file.string(), use, progress);
  } else if (extension == ".csv") {
    read_csv(text, file.string(), use, progress);
  } else {
    read_json_lines(text, file.string(), use, progress);
  }
}

}  // namespace jackscrew
