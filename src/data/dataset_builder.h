// Builds a Dataset from records: cuts windows and stores the tokens.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "data/dataset.h"

namespace jackscrew {

// How an example enters a data set.
enum class LengthFit { whole, cut, left_out };

// Cuts an example of more than sequence_len tokens if `options` say so, and returns how it enters
// the data set; `place` is for messages. Throws Error(data) where such a record is an error.
LengthFit fit_length(Example& example, const DatasetOptions& options, const std::string& place);

class DatasetBuilder {
 public:
  // `tokenizer` may be null: then trained_bytes stays 0. Both must outlive the builder. Throws
  // Error(usage) when sequence_len < 2, or stride leaves tokens between windows.
  DatasetBuilder(const Tokenizer* tokenizer, const DatasetOptions& options);

  // Counts the texts of a record for the statistics and the fingerprint, which do not depend on how
  // they are encoded. Call it for every record, before its example is added; `place` is for
  // messages. Throws Error(data), and counts nothing, where tools are too long to be written as
  // JSON.
  void count_text(const Record& record, const std::string& place);
  // Adds the example of one whole record; `place` is for messages.
  void add_record(Example example, const std::string& place);
  // Adds the next part of a text that is cut into windows; and ends the text.
  void add_text(const Example& part);
  void end_text();

  DatasetStats& stats() { return data_.stats_; }
  // Returns the data set. `key` is stored with the tokens in options.token_file.
  Dataset finish(const std::string& key);
  // What a builder with this key stored in `token_file`; nullopt where there is none.
  static std::optional<Dataset> reopen(const fs::path& token_file, const std::string& key,
                                       const Tokenizer& tokenizer);

  // See Dataset::fingerprint().
  static std::string fingerprint_text(int64_t records, int64_t bytes, uint32_t crc32c);

 private:
  // Returns whether the example had a target and was added.
  bool add(const Example& example);
  // The targets are the tokens that no earlier window had.
  void add_window(std::span<const int32_t> ids);

  const Tokenizer* tokenizer_;
  const DatasetOptions& options_;
  TokenWriter writer_;
  Crc32c text_crc_;
  Dataset data_;
  std::vector<int32_t> text_;  // of the text, from the start of the next window
  size_t overlap_ = 0;         // tokens of text_ that an earlier window had
  bool text_used_ = false;     // whether the text has given an example
};

}  // namespace jackscrew
