// What the tests of data sets share.
#pragma once

#include "data/dataset.h"
#include "tests/text/fixture.h"

namespace jackscrew {

inline DatasetOptions options(int64_t sequence_len, const char* format = "chatml") {
  DatasetOptions out;
  out.sequence_len = sequence_len;
  out.examples.format = chat_format(format, smollm_tokenizer().data(), {});
  return out;
}

inline std::vector<Example> examples_of(const Dataset& data) {
  std::vector<Example> examples;
  for (int64_t i = 0; i < data.size(); ++i) examples.push_back(data.example(i));
  return examples;
}

class DatasetTest : public DirectoryTest {
 protected:
  Dataset read(const std::string& name, const std::string& text, const DatasetOptions& o) {
    return Dataset::read(write(name, text), tokenizer_, o);
  }
  std::string decode(const Example& example) const { return tokenizer_.decode(example.ids, false); }
  void refuse(const std::string& name, const std::string& text, const std::string& part) {
    expect_error(ErrorKind::data, part, [&] { read(name, text, options(1000)); });
  }
  Tokenizer tokenizer_ = smollm_tokenizer();
};

}  // namespace jackscrew
