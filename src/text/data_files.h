// Which files data are read from.
#pragma once

#include <filesystem>
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

// The data files at `path`: the file itself, whatever the part, or a directory's files in order of
// name. In a directory, names that begin with the word train are for training; those that begin
// with valid, validation, eval or dev for evaluation or, where there are none, with test.
// Where no file is named so, all are for both. Throws Error(data) when there is nothing of the part
// or `path` is missing.
std::vector<std::filesystem::path> data_files(const std::filesystem::path& path, DataPart part);

// Of a directory, what data_files() leaves out although it might have been meant, as warnings:
// files of neither part, packed files and other tables, links to nothing, and directories with data
// files in it.
std::vector<std::string> left_out_warnings(const std::filesystem::path& path, DataPart part);

// Whether `path` is a directory with files whose names choose this part.
bool names_part(const std::filesystem::path& path, DataPart part);

}  // namespace jackscrew
