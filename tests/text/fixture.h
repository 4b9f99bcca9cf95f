// What the tests of this room share: the golden files and small tokenizers.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "tests/support/errors.h"
#include "tests/support/paths.h"
#include "text/tokenizer/tokenizer_json.h"

namespace jackscrew {

inline fs::path text_data() {
  return fs::path(kTestData) / "text" / "data";
}

inline nlohmann::json golden() {
  return nlohmann::json::parse(read_text(text_data() / "golden.json"));
}

// `name` is "smollm" or "llama3"; see tools/golden_tokenizer.py.
inline TokenizerData golden_data(const std::string& name) {
  const fs::path path = text_data() / (name + "_tokenizer.json");
  return parse_tokenizer_json(read_text(path), path.string());
}

inline Tokenizer smollm_tokenizer() {
  TokenizerData data = golden_data("smollm");
  data.eos = 2;  // <|im_end|>
  return Tokenizer(std::move(data));
}

inline Tokenizer llama3_tokenizer() {
  TokenizerData data = golden_data("llama3");
  data.eos = Tokenizer(data).find_special("<|im_end|>").value();
  return Tokenizer(std::move(data));
}

// A directory of its own for each test, removed afterwards.
class DirectoryTest : public ::testing::Test {
 protected:
  DirectoryTest()
      : directory_(fs::temp_directory_path() /
                   fmt::format("jackscrew_{}_{}",
                               ::testing::UnitTest::GetInstance()->current_test_info()->name(),
                               ::testing::UnitTest::GetInstance()->random_seed())) {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  ~DirectoryTest() override {
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }
  fs::path write(const std::string& name, const std::string& text) {
    write_text_atomic(directory_ / name, text);
    return directory_ / name;
  }
  fs::path directory_;
};

}  // namespace jackscrew
