// What the tests of this room share: a directory of their own, files of bytes, errors as text.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "tests/support/errors.h"

namespace jackscrew {

class FormatsTest : public ::testing::Test {
 protected:
  FormatsTest()
      : directory_(fs::temp_directory_path() / fmt::format("jackscrew_formats_{}", ::getpid())) {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  ~FormatsTest() override { fs::remove_all(directory_); }

  // Writes a file into the test's directory and returns its path.
  fs::path put(const std::string& name, std::string_view bytes) const {
    const fs::path path = directory_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  fs::path directory_;
};

inline std::string slurp(const fs::path& path) {
  return read_text(path);
}

template <typename Action>
std::string model_error(const Action& action) {
  return error_of(ErrorKind::model, action);
}

// Prints both texts on failure.
inline ::testing::AssertionResult mentions(const std::string& text, std::string_view part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << text << "\" does not mention \"" << part << "\"";
}

// Damages files in every way that a broken download or a bad disk does, and reads each result:
// `read` may succeed on a flipped byte or throw Error, nothing else; a truncated file must be
// Error(model).
template <typename Read>
void damage(const fs::path& scratch, const std::string& good, size_t header_bytes, Read&& read) {
  std::mt19937 random(7);
  std::vector<size_t> lengths;
  for (size_t i = 0; i < 16; ++i) lengths.push_back(good.size() * i / 16);
  for (int i = 0; i < 200; ++i) lengths.push_back(random() % good.size());
  lengths.push_back(good.size() - 1);
  std::ofstream(scratch, std::ios::binary) << good;
  std::sort(lengths.rbegin(), lengths.rend());
  for (const size_t length : lengths) {
    fs::resize_file(scratch, length);
    try {
      read(scratch);
      ADD_FAILURE() << "truncated to " << length << " of " << good.size() << " bytes: no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::model) << length << ": " << error.what();
    }
  }
  std::ofstream(scratch, std::ios::binary) << good;
  std::fstream file(scratch, std::ios::binary | std::ios::in | std::ios::out);
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good.substr(0, header_bytes);
    const size_t at = random() % header_bytes;
    bad[at] = static_cast<char>(i % 3 == 0 ? 0xFF : i % 3 == 1 ? 0x00 : random() & 0xFF);
    if (i % 5 == 0 && at + 8 <= header_bytes) bad.replace(at, 8, 8, '\xFF');
    file.seekp(0);
    file << bad << std::flush;
    try {
      read(scratch);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::model) << "byte " << at << ": " << error.what();
    }
  }
}

}  // namespace jackscrew
