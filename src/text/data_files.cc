#include "text/data_files.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace jackscrew {

namespace {

enum class Name { train, valid, test };

// What a file's name chooses, if anything: "train.jsonl", "test-01.json".
std::optional<Name> named(const fs::path& path) {
  static const std::vector<std::pair<std::string_view, Name>> kNames = {
      {"train", Name::train}, {"validation", Name::valid}, {"valid", Name::valid},
      {"eval", Name::valid},  {"dev", Name::valid},        {"test", Name::test}};
  const std::string stem = path.stem().string();
  for (const auto& [begin, name] : kNames) {
    if (!stem.starts_with(begin)) continue;
    if (stem.size() == begin.size() ||
        std::isalpha(static_cast<unsigned char>(stem[begin.size()])) == 0) {
      return name;
    }
  }
  return std::nullopt;
}

// Links that lead nowhere or in a circle are neither.
bool is_a_directory(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}
bool is_a_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// What a directory holds, each list in order of name.
struct Listing {
  std::vector<fs::path> files;   // data files
  std::vector<fs::path> others;  // files of other kinds, and what is no file
  std::vector<fs::path> directories;

  bool has(Name name) const {
    return std::any_of(files.begin(), files.end(),
                       [&](const fs::path& file) { return named(file) == name; });
  }
  // Which name is the part's; none where all files are.
  std::optional<Name> name_of(DataPart part) const {
    const bool any = has(Name::train) || has(Name::valid) || has(Name::test);
    if (!any) return std::nullopt;
    if (part == DataPart::train) return Name::train;
    return has(Name::valid) ? Name::valid : Name::test;
  }
};

Listing list(const fs::path& directory) {
  Listing out;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const fs::path& path = at->path();
    if (is_a_directory(path)) {
      out.directories.push_back(path);
    } else {
      (is_data_file(path) && is_a_file(path) ? out.files : out.others).push_back(path);
    }
  }
  if (error) fail(ErrorKind::data, "cannot list {}: {}", directory.string(), error.message());
  for (auto* paths : {&out.files, &out.others, &out.directories}) {
    std::sort(paths->begin(), paths->end());
  }
  return out;
}

bool holds_data(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    if (is_data_file(at->path()) && is_a_file(at->path())) return true;
  }
  return false;
}

bool is_packed(const fs::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".gz" || extension == ".bz2" || extension == ".xz" || extension == ".zst" ||
         extension == ".zip";
}

bool is_table(const fs::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".parquet" || extension == ".arrow";
}

// "a.jsonl", "a.jsonl and b.txt", "a.jsonl and 7 more".
std::string names(const std::vector<fs::path>& paths) {
  const std::string first = paths.front().filename().string();
  if (paths.size() == 1) return first;
  if (paths.size() == 2) return first + " and " + paths.back().filename().string();
  return fmt::format("{} and {} more", first, paths.size() - 1);
}

}  // namespace

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

std::string unread_hint(const fs::path& path) {
  constexpr const char* kRead = ".jsonl, .json, .csv and .txt are read";
  if (is_table(path)) {
    return fmt::format(
        "{}; in Python, datasets.load_dataset(\"{}\", data_files=\"{}\", split=\"train\")"
        ".to_json(\"data.jsonl\") writes the first",
        kRead, lower_extension(path).substr(1), path.string());
  }
  return fmt::format("{}{}", kRead, is_packed(path) ? "; unpack it first" : "");
}

std::vector<fs::path> data_files(const fs::path& path, DataPart part) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw Error(ErrorKind::data, fmt::format("{} does not exist", path.string()),
                is_repository_name(path.string())
                    ? fmt::format("the program downloads nothing; in Python, datasets.load_dataset("
                                  "\"{}\", split=\"train\").to_json(\"data.jsonl\") writes a data "
                                  "set of the hub to a file",
                                  path.string())
                    : "check the path");
  }
  if (!is_a_directory(path)) return {path};
  const Listing listing = list(path);
  const std::optional<Name> wanted = listing.name_of(part);
  std::vector<fs::path> files;
  for (const fs::path& file : listing.files) {
    if (!wanted || named(file) == wanted) files.push_back(file);
  }
  if (!files.empty()) return files;
  const std::string what = part == DataPart::train ? "training files" : "files for evaluation";
  const std::string message = fmt::format("{} holds no {}", path.string(), what);
  if (!listing.files.empty()) {
    std::vector<fs::path> choosing = listing.files;
    std::erase_if(choosing, [](const fs::path& file) { return !named(file); });
    throw Error(
        ErrorKind::data, message,
        fmt::format("file names there select other parts: {}; a file that is given itself is "
                    "read whatever its name",
                    names(choosing)));
  }
  const auto deeper =
      std::find_if(listing.directories.begin(), listing.directories.end(), holds_data);
  throw Error(ErrorKind::data, message,
              deeper != listing.directories.end()
                  ? fmt::format("directories in it are not read: name {} itself", deeper->string())
              : !listing.others.empty() ? unread_hint(listing.others.front())
                                        : ".jsonl, .json, .csv and .txt files are read");
}

std::vector<std::string> left_out_warnings(const fs::path& path, DataPart part) {
  if (!is_a_directory(path)) return {};
  std::vector<std::string> warnings;
  const Listing listing = list(path);
  const std::optional<Name> wanted = listing.name_of(part);
  std::vector<fs::path> left;
  for (const fs::path& file : listing.files) {
    const std::optional<Name> name = named(file);
    const bool other_part = name && (part == DataPart::train || *name == Name::train);
    if (wanted && name != wanted && !other_part) left.push_back(file);
  }
  const auto warn_of = [&](const std::vector<fs::path>& files, const std::string& why) {
    if (files.empty()) return;
    warnings.push_back(fmt::format("{}: {} {} not read{}", path.string(), names(files),
                                   files.size() == 1 ? "is" : "are", why));
  };
  warn_of(left, ": the names of other files there select those");
  std::vector<fs::path> unread = listing.others;
  std::erase_if(unread, [](const fs::path& file) { return !is_packed(file) && !is_table(file); });
  if (!unread.empty()) warn_of(unread, ": " + unread_hint(unread.front()));
  std::vector<fs::path> no_files = listing.others;
  std::erase_if(no_files, [](const fs::path& file) { return !is_data_file(file); });
  warn_of(no_files, ": not a regular file, or a broken link");
  std::vector<fs::path> directories = listing.directories;
  std::erase_if(directories, [](const fs::path& directory) { return !holds_data(directory); });
  if (!directories.empty()) {
    warnings.push_back(
        fmt::format("{}: directories in it are not read: {}", path.string(), names(directories)));
  }
  return warnings;
}

bool names_part(const fs::path& path, DataPart part) {
  if (!is_a_directory(path)) return false;
  const Listing listing = list(path);
  const std::optional<Name> wanted = listing.name_of(part);
  return wanted && listing.has(*wanted);
}

}  // namespace jackscrew
