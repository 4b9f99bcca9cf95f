// How a Dataset comes to be: records in, windows cut, tokens kept.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "data/dataset.h"

namespace jackscrew {

// How an example comes into a data set.
enum class LengthFit { whole, cut, left_out };

// Cuts an example of more than sequence_len tokens where `options` say so, and tells what is to be
// done with it; `place` is for messages. Throws Error(data) where such a record is an error.
LengthFit fit_length(Example& example, const DatasetOptions& options, const std::string& place);

class DatasetBuilder {
 public:
  // `tokenizer` may be null: then trained_bytes stays 0. Both must outlive the builder. Throws
  // Error(usage) when sequence_len < 2.
  DatasetBuilder(const Tokenizer* tokenizer, const DatasetOptions& options);

  // Every record, before its example: what the data are told by, whatever is made of them.
  void count_text(const Record& record);
  // The example of one record, whole; `place` is for messages.
  void add_record(Example example, const std::string& place);
  // The next part of a text that is cut into windows, and its end.
  void add_text(const Example& part);
  void end_text();

  DatasetStats& stats() { return data_.stats_; }
  // `key` is kept beside the tokens in options.token_file.
  Dataset finish(const std::string& key);
  // What a builder with this key kept in `token_file`; nothing where there is none.
  static std::optional<Dataset> reopen(const fs::path& token_file, const std::string& key,
                                       const Tokenizer& tokenizer);

  // See Dataset::fingerprint().
  static std::string fingerprint_text(int64_t records, int64_t bytes, uint32_t crc32c);

 private:
  // Whether a target was among them.
  bool add(const Example& example);
  // The targets are the tokens that no window had before.
  void add_window(std::span<const int32_t> ids);

  const Tokenizer* tokenizer_;
  const DatasetOptions& options_;
  TokenWriter writer_;
  Crc32c text_crc_;
  Dataset data_;
  std::vector<int32_t> text_;  // from the beginning of the next window
  size_t scored_ = 0;          // tokens of text_ that an earlier window had as targets
  bool text_used_ = false;     // whether the text has given an example
};

}  // namespace jackscrew
