// Decides which files data are read from.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace jackscrew {

// The use of data.
enum class DataPart { train, evaluation };

// The extension of a file's name in lower case, with its dot.
std::string lower_extension(const std::filesystem::path& path);

// Whether the file is one of .jsonl .json .csv .txt; and what to do about a file of another kind.
bool is_data_file(const std::filesystem::path& path);
std::string unread_hint(const std::filesystem::path& path);

// A path of `data`: a file, or a directory, which is listed once. In a directory, files with the
// word train or training in their names are training data; those with validation, valid, val, dev
// or heldout (held_out, held-out) are evaluation data, or if there are none, those with test,
// testing, eval or evaluation. Of several words the last one counts. If no file is named so, all
// are for both, but not .txt files called readme, license or licence, alone or before what is no
// letter ("LICENSE-MIT.txt").
class DataPlace {
 public:
  // Throws Error(data) when `path` is missing or cannot be listed, or where the system does not say
  // what one of its data files is.
  DataPlace(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // The file itself, whatever the part, or the directory's files of that part in order of name.
  // Throws Error(data) when there is none.
  std::vector<std::filesystem::path> files(DataPart part) const;
  // For a directory, warnings of what files() leaves out although it might have been meant: files
  // of neither part, descriptions, files of other kinds (but not those that stand beside data as a
  // rule: README, .md, .yaml, .py ...), dangling links, and directories that hold data files.
  std::vector<std::string> left_out_warnings(DataPart part) const;
  // Whether it is a directory with files whose names choose this part.
  bool names(DataPart part) const;

 private:
  enum class Name;
  // The name in a file's name, if any: "train.jsonl", "alpaca_test-01.json".
  static std::optional<Name> named(const std::filesystem::path& file);
  bool has(Name name) const;
  // The name that selects the part; nullopt where all files belong to it.
  std::optional<Name> name_of(DataPart part) const;

  std::filesystem::path path_;
  bool is_directory_ = false;
  // In a directory, each in order of name.
  std::vector<std::filesystem::path> files_;         // data files
  std::vector<std::filesystem::path> descriptions_;  // of data, by their names
  std::vector<std::filesystem::path> others_;        // files of other kinds, and what is no file
  std::vector<std::filesystem::path> directories_;
};

// One for each of a recipe's paths.
std::vector<DataPlace> data_places(const std::vector<std::string>& paths);

}  // namespace jackscrew
