// Which files data are read from.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace jackscrew {

// What data are read for.
enum class DataPart { train, evaluation };

// The extension of a file's name in lower case, with its point.
std::string lower_extension(const std::filesystem::path& path);

// Whether it is one of .jsonl .json .csv .txt; and what to do about a file of another kind.
bool is_data_file(const std::filesystem::path& path);
std::string unread_hint(const std::filesystem::path& path);

// A path of `data`: a file, or a directory, which is listed once. In a directory, names that begin
// with the word train are for training; those that begin with valid, validation, eval or dev for
// evaluation or, where there are none, with test. Where no file is named so, all are for both.
class DataPlace {
 public:
  // Throws Error(data) when `path` is missing or cannot be listed.
  DataPlace(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // The file itself, whatever the part, or the directory's files of it in order of name. Throws
  // Error(data) when there is none.
  std::vector<std::filesystem::path> files(DataPart part) const;
  // Of a directory, what files() leaves out although it might have been meant, as warnings: files
  // of neither part, packed files and other tables, links to nothing, and directories with data
  // files in it.
  std::vector<std::string> left_out_warnings(DataPart part) const;
  // Whether it is a directory with files whose names choose this part.
  bool names(DataPart part) const;

 private:
  enum class Name;
  // What a file's name chooses, if anything: "train.jsonl", "test-01.json".
  static std::optional<Name> named(const std::filesystem::path& file);
  bool has(Name name) const;
  // Which name is the part's; none where all files are.
  std::optional<Name> name_of(DataPart part) const;

  std::filesystem::path path_;
  bool is_directory_;
  // Of a directory, each in order of name.
  std::vector<std::filesystem::path> files_;   // data files
  std::vector<std::filesystem::path> others_;  // files of other kinds, and what is no file
  std::vector<std::filesystem::path> directories_;
};

// One for each of a recipe's paths.
std::vector<DataPlace> data_places(const std::vector<std::string>& paths);

}  // namespace jackscrew
