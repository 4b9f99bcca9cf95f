#include "data/data_files.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/list_text.h"
#include "base/text.h"

namespace jackscrew {

namespace {

// not_found for links that lead nowhere or in a circle. Throws Error(data) where the system does
// not say: what may be data must not be left out over that.
fs::file_type type_of(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type != fs::file_type::none) return type;
  if (error == std::errc::too_many_symbolic_link_levels) return fs::file_type::not_found;
  throw Error(ErrorKind::data, fmt::format("cannot look at {}: {}", path.string(), error.message()),
              "make it readable, or leave it out");
}

// For what is not read, whatever it is: false also where the system does not say.
bool is_a_directory(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}
bool is_a_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// Hidden files are what a system keeps for itself: "._train.jsonl" on a Mac's disks.
bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

// Whether a file's name is that word, or begins with it and goes on with no letter.
bool is_named(const fs::path& file, std::string_view word) {
  const std::string stem = lower_case(file.stem().string());
  if (!stem.starts_with(word)) return false;
  return stem.size() == word.size() ||
         std::isalpha(static_cast<unsigned char>(stem[word.size()])) == 0;
}

// Where a word stands in a name for the last time, with no letter beside it; npos: nowhere.
size_t last_place_of(std::string_view word, std::string_view name) {
  const auto is_letter = [&](size_t at) {
    const auto byte = static_cast<unsigned char>(name[at]);
    return std::isalpha(byte) != 0 || byte >= 0x80;
  };
  for (size_t at = name.rfind(word); at != name.npos; at = name.rfind(word, at - 1)) {
    const size_t end = at + word.size();
    const bool is_part = (at > 0 && is_letter(at - 1)) || (end < name.size() && is_letter(end));
    if (!is_part) return at;
    if (at == 0) break;
  }
  return name.npos;
}

// What stands beside data and says what they are: "README", "LICENSE-MIT.txt".
bool describes_by_name(const fs::path& file) {
  constexpr std::string_view kWords[] = {"readme", "license", "licence"};
  return std::ranges::any_of(kWords, [&](std::string_view word) { return is_named(file, word); });
}

bool is_description(const fs::path& file) {
  return lower_extension(file) == ".txt" && describes_by_name(file);
}

// What is no data, whoever reads it, and stands beside data as a rule.
bool is_bystander(const fs::path& file) {
  constexpr std::string_view kExtensions[] = {".md", ".yaml", ".yml", ".py", ".ipynb", ".sh"};
  const std::string extension = lower_extension(file);
  return describes_by_name(file) ||
         std::ranges::find(kExtensions, extension) != std::end(kExtensions);
}

bool holds_data(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const fs::path& entry = at->path();
    const bool is_data = is_data_file(entry) && !is_description(entry);
    if (!is_hidden(entry) && is_data && is_a_file(entry)) return true;
  }
  return false;
}

bool is_packed(const fs::path& path) {
  const std::string extension = lower_extension(path);
  constexpr std::string_view kExtensions[] = {".gz",  ".bz2", ".xz",  ".zst", ".zip",
                                              ".tgz", ".tar", ".lz4", ".7z"};
  return std::ranges::find(kExtensions, extension) != std::end(kExtensions);
}

bool is_table(const fs::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".parquet" || extension == ".arrow";
}

// "a.jsonl", "a.jsonl and b.txt", "a.jsonl and 7 more".
std::string names_of(const std::vector<fs::path>& paths) {
  const std::string first = paths.front().filename().string();
  if (paths.size() == 1) return first;
  if (paths.size() == 2) return first + " and " + paths.back().filename().string();
  return fmt::format("{} and {} more", first, paths.size() - 1);
}

std::string left_by_name(const std::vector<fs::path>& paths) {
  return names_of(paths) + "; a file given by its own path is read whatever its name";
}

}  // namespace

std::string lower_extension(const fs::path& path) {
  return lower_case(path.extension().string());
}

bool is_data_file(const fs::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".jsonl" || extension == ".json" || extension == ".csv" ||
         extension == ".txt";
}

std::string unread_hint(const fs::path& path) {
  constexpr const char* kRead = ".jsonl, .json, .csv and .txt are read";
  const std::string extension = lower_extension(path);
  if (is_table(path)) {
    return fmt::format(
        "{}; in Python, datasets.load_dataset(\"{}\", data_files=\"{}\", split=\"train\")"
        ".to_json(\"data.jsonl\") writes the first",
        kRead, extension.substr(1), path.string());
  }
  return fmt::format("{}{}", kRead,
                     is_packed(path)                                       ? "; unpack it first"
                     : extension == ".ndjson" || extension == ".jsonlines" ? "; name it .jsonl"
                     : extension == ".tsv" ? "; write it with commas, as .csv"
                                           : "");
}

enum class DataPlace::Name { train, valid, test };

std::optional<DataPlace::Name> DataPlace::named(const fs::path& file) {
  // Those of Hugging Face's datasets, and what is held out here.
  static const std::vector<std::pair<std::string_view, Name>> kNames = {
      {"train", Name::train},    {"training", Name::train}, {"validation", Name::valid},
      {"valid", Name::valid},    {"val", Name::valid},      {"dev", Name::valid},
      {"heldout", Name::valid},  {"held_out", Name::valid}, {"held-out", Name::valid},
      {"test", Name::test},      {"testing", Name::test},   {"eval", Name::test},
      {"evaluation", Name::test}};
  const std::string stem = lower_case(file.stem().string());
  std::optional<Name> last;
  size_t last_place = 0;
  for (const auto& [word, name] : kNames) {
    const size_t place = last_place_of(word, stem);
    if (place != stem.npos && (!last || place > last_place)) {
      last = name;
      last_place = place;
    }
  }
  return last;
}

DataPlace::DataPlace(fs::path path) : path_(std::move(path)) {
  const fs::file_type type = type_of(path_);
  is_directory_ = type == fs::file_type::directory;
  if (type == fs::file_type::not_found) {
    throw Error(ErrorKind::data, fmt::format("{} does not exist", path_.string()),
                is_repository_name(path_.string())
                    ? fmt::format("the program downloads nothing; in Python, datasets.load_dataset("
                                  "\"{}\", split=\"train\").to_json(\"data.jsonl\") writes a data "
                                  "set of the hub to a file",
                                  path_.string())
                : path_.string().find_first_of("*?") != std::string::npos
                    ? "* and ? match no files here: give their directory, or several as "
                      "a.jsonl,b.jsonl"
                : !path_.has_parent_path() && !path_.has_extension()
                    ? "data are given as files or their directory; names in a dataset_info.json "
                      "are not known here" +
                          from_where(path_)
                    : "check the path" + from_where(path_));
  }
  if (!is_directory_) return;
  std::error_code error;
  for (fs::directory_iterator at(path_, error), end; !error && at != end; at.increment(error)) {
    const fs::path& entry = at->path();
    if (is_hidden(entry)) continue;
    if (!is_data_file(entry)) {
      (is_a_directory(entry) ? directories_ : others_).push_back(entry);
      continue;
    }
    const fs::file_type entry_type = type_of(entry);
    if (entry_type == fs::file_type::directory) {
      directories_.push_back(entry);
    } else if (entry_type != fs::file_type::regular) {
      others_.push_back(entry);
    } else {
      (is_description(entry) ? descriptions_ : files_).push_back(entry);
    }
  }
  if (error) fail(ErrorKind::data, "cannot list {}: {}", path_.string(), error.message());
  for (auto* paths : {&files_, &descriptions_, &others_, &directories_}) {
    std::sort(paths->begin(), paths->end());
  }
}

bool DataPlace::has(Name name) const {
  return std::any_of(files_.begin(), files_.end(),
                     [&](const fs::path& file) { return named(file) == name; });
}

std::optional<DataPlace::Name> DataPlace::name_of(DataPart part) const {
  const bool any = has(Name::train) || has(Name::valid) || has(Name::test);
  if (!any) return std::nullopt;
  if (part == DataPart::train) return Name::train;
  return has(Name::valid) ? Name::valid : Name::test;
}

bool DataPlace::names(DataPart part) const {
  const std::optional<Name> wanted = name_of(part);
  return wanted && has(*wanted);
}

std::vector<fs::path> DataPlace::files(DataPart part) const {
  if (!is_directory_) return {path_};
  const std::optional<Name> wanted = name_of(part);
  std::vector<fs::path> out;
  for (const fs::path& file : files_) {
    if (!wanted || named(file) == wanted) out.push_back(file);
  }
  if (!out.empty()) return out;
  const std::string what = part == DataPart::train ? "training files" : "files for evaluation";
  const std::string message = fmt::format("{} holds no {}", path_.string(), what);
  if (!files_.empty()) {
    std::vector<fs::path> choosing = files_;
    std::erase_if(choosing, [](const fs::path& file) { return !named(file); });
    throw Error(ErrorKind::data, message,
                "files there are named for other splits: " + left_by_name(choosing));
  }
  const auto deeper = std::find_if(directories_.begin(), directories_.end(), holds_data);
  const auto other = std::find_if_not(others_.begin(), others_.end(), is_bystander);
  throw Error(ErrorKind::data, message,
              deeper != directories_.end()
                  ? fmt::format("subdirectories are not read: give {} itself", deeper->string())
              : other != others_.end() ? unread_hint(*other)
              : !descriptions_.empty()
                  ? "files there are named as descriptions of data: " + left_by_name(descriptions_)
                  : ".jsonl, .json, .csv and .txt files are read");
}

std::vector<std::string> DataPlace::left_out_warnings(DataPart part) const {
  std::vector<std::string> warnings;
  const std::optional<Name> wanted = name_of(part);
  std::vector<fs::path> left;
  for (const fs::path& file : files_) {
    const std::optional<Name> name = named(file);
    const bool other_part = name && (part == DataPart::train || *name == Name::train);
    if (wanted && name != wanted && !other_part) left.push_back(file);
  }
  const auto warn_of = [&](const std::vector<fs::path>& files, const std::string& why) {
    if (files.empty()) return;
    warnings.push_back(fmt::format("{}: {} {} not read{}", path_.string(), names_of(files),
                                   files.size() == 1 ? "is" : "are", why));
  };
  warn_of(left, names(part) ? ": other files there are named for this split"
                            : ": files there are named for other splits");
  warn_of(descriptions_, ": named as a description of data");
  std::vector<fs::path> unread = others_;
  std::erase_if(unread, [](const fs::path& file) {
    return is_data_file(file) || is_bystander(file) || !is_a_file(file);
  });
  if (!unread.empty()) warn_of(unread, ": " + unread_hint(unread.front()));
  std::vector<fs::path> no_files = others_;
  std::erase_if(no_files, [](const fs::path& file) { return !is_data_file(file); });
  warn_of(no_files, ": not a regular file, or a broken link");
  std::vector<fs::path> directories = directories_;
  std::erase_if(directories, [](const fs::path& directory) { return !holds_data(directory); });
  if (!directories.empty()) {
    warnings.push_back(
        fmt::format("{}: subdirectories are not read: {}", path_.string(), names_of(directories)));
  }
  return warnings;
}

std::vector<DataPlace> data_places(const std::vector<std::string>& paths) {
  std::vector<DataPlace> out;
  out.reserve(paths.size());
  try {
    for (const std::string& path : paths) out.emplace_back(path);
  } catch (const Error& error) {
    const std::string hint = hint_of_comma(paths);
    throw Error(error.kind(), error.what(), hint.empty() ? error.hint() : hint);
  }
  return out;
}

}  // namespace jackscrew
