// Examples: token ids, and which of them a model is trained to predict.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "text/chat_template.h"
#include "text/records.h"
#include "text/tokenizer.h"

namespace jackscrew {

// What is not as it should be in conversations.
struct ChatNotes {
  int32_t untrainable = 0;  // answers whose part of the text is not known
  int32_t unended = 0;      // trained answers without a token that ends them
  int32_t dropped_bos = 0;  // conversations that began with BOS twice

  ChatNotes& operator+=(const ChatNotes& other);
};

struct Example {
  std::vector<int32_t> ids;
  std::vector<uint8_t> train;  // one for each id; 1: this token is a target
  ChatNotes notes = {};

  // Targets that count: the first token is predicted from nothing and never does.
  int64_t target_count() const;
};

struct DatasetOptions {
  int64_t sequence_len = 1024;   // tokens; longer examples are cut at their end
  bool train_on_inputs = false;  // every token is trained, the user's too
  ChatFormat format;
  int64_t stride = 0;  // tokens from one window of a .txt file to the next; 0: sequence_len
};

struct DatasetStats {
  int64_t records = 0;         // in the files; a .txt file is one
  int64_t examples = 0;        // kept
  int64_t truncated = 0;       // records that lost tokens to sequence_len
  int64_t dropped = 0;         // records without any target left
  int64_t tokens = 0;          // in the examples kept
  int64_t trained_tokens = 0;  // targets in the examples kept
  int64_t trained_bytes = 0;   // bytes that those targets stand for, special tokens left out
  int64_t text_bytes = 0;      // of all contents as they stood in the records
  ChatNotes notes;             // of all records
};

// What a user should know of `stats` before training; empty where all is well.
std::vector<std::string> data_warnings(const DatasetStats& stats);

class Dataset;
// Examples with the same ids as an earlier one.
int64_t repeated_examples(const Dataset& data);
// Examples of `held_out` that stand in `training` too: what they say of a model is too good.
int64_t leaked_examples(const Dataset& held_out, const Dataset& training);

// The example of one record, whole; `place` is for messages. `progress` is told of the bytes of a
// DocumentRecord, which may be a long text. Throws what render_chat throws.
Example encode_record(const Tokenizer& tokenizer, const DatasetOptions& options,
                      const Record& record, const std::string& place,
                      const ProgressCallback& progress = {});

// Examples of at most `sequence_len` tokens, each with at least one target.
class Dataset {
 public:
  Dataset() = default;
  // Cuts, drops and counts as if each example were a record. `tokenizer` may be null: then
  // trained_bytes stays 0. Throws Error(usage) when sequence_len < 2, Error(data) when an example's
  // `ids` and `train` differ in length.
  Dataset(std::vector<Example> examples, int64_t sequence_len,
          const Tokenizer* tokenizer = nullptr);

  // Reads the files of one part (see data_files). A .txt file is encoded once, with BOS where the
  // tokenizer adds it by default, and cut into consecutive windows of sequence_len tokens (the last
  // may be shorter); every token but the first of each window is a target. `progress` is told of
  // the files' bytes. Throws Error(data) naming file and line, also when nothing is left to train
  // on in the part train.
  static Dataset read(const std::filesystem::path& path, const Tokenizer& tokenizer,
                      const DatasetOptions& options, DataPart part = DataPart::train,
                      const ProgressCallback& progress = {});

  const std::vector<Example>& examples() const { return examples_; }
  const DatasetStats& stats() const { return stats_; }
  int64_t size() const { return static_cast<int64_t>(examples_.size()); }

  // Splits off examples drawn by `seed`: a share of them when val_size < 1 (at least one), that
  // many when >= 1. {rest, split off}, both in their former order; the counts of records,
  // truncated, dropped and text_bytes stay with the rest. Throws Error(usage) when either part
  // would be empty.
  std::pair<Dataset, Dataset> split(double val_size, uint64_t seed) const;

 private:
  void add(Example example, int64_t sequence_len, const Tokenizer* tokenizer);
  void keep(Example example, int64_t trained_bytes);

  std::vector<Example> examples_;
  std::vector<int64_t> trained_bytes_;  // by example
  DatasetStats stats_;
};

}  // namespace jackscrew
