// Data sets: the examples from files, for training and evaluation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "data/data_files.h"
#include "data/example.h"
#include "data/token_store.h"

namespace jackscrew {

// What to do with a record that is longer than a sequence.
enum class LongRecord { truncate, drop, error };

struct DatasetOptions {
  int64_t sequence_len = 1024;  // tokens
  bool after_virtual = false;   // virtual tokens take the rest of the recipe's sequence_len
  ExampleOptions examples;
  LongRecord long_record = LongRecord::truncate;
  bool skip_bad_records = false;  // records that cannot be read are left out and counted
  int64_t max_samples = 0;        // records read at most; 0: all
  int64_t stride = 0;  // tokens from one window of a .txt file to the next; 0: sequence_len
  int threads = 1;     // for reading; the result does not depend on it
  // Where the tokens are kept; empty: in memory. If the file exists and was made from the same data
  // (by name, size and time), tokenizer and options, it is read instead of the data.
  fs::path token_file = {};
  // Otherwise the file never has that name, and is gone with the data set.
  bool keep_token_file = true;
};

struct DatasetStats {
  int64_t records = 0;         // in the files; a .txt file is one
  int64_t examples = 0;        // kept
  int64_t truncated = 0;       // records that lost tokens to sequence_len
  int64_t too_long = 0;        // records left out for their length
  int64_t longest = 0;         // tokens of the longest record, before it is cut or left out
  int64_t room = 0;            // tokens that virtual ones leave of sequence_len; 0: all
  int64_t dropped = 0;         // records left without any target
  int64_t bad = 0;             // records left out because they cannot be read
  int64_t tokens = 0;          // in the examples kept
  int64_t trained_tokens = 0;  // targets in the examples kept
  // Bytes that those targets stand for; of special tokens only those that a text spells out.
  int64_t trained_bytes = 0;
  int64_t text_bytes = 0;  // of all contents as they are in the records
  // Of the same records, before anything is cut or left out: also those that the chat template
  // writes around the contents, and BOS and EOS.
  int64_t text_tokens = 0;
  RecordNotes notes;      // of all records
  std::string first_bad;  // the first bad record: what is wrong, and where

  void add_bad(const std::string& what);
  // Those that gave examples.
  int64_t used_records() const { return records - bad - too_long - dropped; }
  DatasetStats& operator+=(const DatasetStats& other);
  bool operator==(const DatasetStats&) const = default;
};

// Those that are sums, without the notes: not `longest` and `room`.
inline constexpr NamedCount<DatasetStats> kDatasetCounts[] = {
    {"records", &DatasetStats::records},
    {"examples", &DatasetStats::examples},
    {"truncated", &DatasetStats::truncated},
    {"too_long", &DatasetStats::too_long},
    {"dropped", &DatasetStats::dropped},
    {"bad", &DatasetStats::bad},
    {"tokens", &DatasetStats::tokens},
    {"trained_tokens", &DatasetStats::trained_tokens},
    {"trained_bytes", &DatasetStats::trained_bytes},
    {"text_bytes", &DatasetStats::text_bytes},
    {"text_tokens", &DatasetStats::text_tokens},
};

// What becomes of targets. A calibration has none: it takes any piece of a text.
enum class TargetUse { none, scored, learned };

// What a user should know of `stats` before the examples are used; empty where all is well.
// `all_read`: there are no records beyond those of `stats`.
std::vector<std::string> data_warnings(const DatasetStats& stats,
                                       TargetUse use = TargetUse::learned, bool all_read = true);

// Examples of at most `sequence_len` tokens, each with at least one target. Copies share the
// tokens.
class Dataset {
 public:
  Dataset() = default;
  // Cuts, drops and counts as if each example were a record. `tokenizer` may be null: then
  // trained_bytes stays 0. Throws Error(usage) when sequence_len < 2, Error(data) when an example's
  // `ids` and `train` differ in length.
  Dataset(std::vector<Example> examples, int64_t sequence_len,
          const Tokenizer* tokenizer = nullptr);

  // Reads the files of one part (see DataPlace). A .txt file is encoded as one text, with BOS where
  // the tokenizer adds it by default, and cut into consecutive windows of sequence_len tokens (the
  // last may be shorter); every token but the first of each window is a target. `progress` is told
  // the bytes of files read. Throws Error(data) naming file and line, also when no target is left.
  static Dataset read(const DataPlace& from, const Tokenizer& tokenizer,
                      const DatasetOptions& options, DataPart part = DataPart::train,
                      const ProgressCallback& progress = {});
  // The concatenation of `parts`.
  static Dataset join(std::span<const Dataset> parts);

  int64_t size() const { return std::ssize(items_); }
  Example example(int64_t index) const;
  int64_t length(int64_t index) const;  // tokens of an example
  const DatasetStats& stats() const { return stats_; }
  // A short text that identifies the texts that were read, whatever the tokenizer; of a part that
  // was split off also which.
  const std::string& fingerprint() const { return fingerprint_; }
  // The greatest length in bytes of the fingerprint of `parts` joined data sets.
  static int64_t longest_fingerprint(int64_t parts);

  // Splits off examples drawn by `seed`: a share of them when val_size < 1 (at least one), that
  // many when >= 1. Returns {rest, split off}, both in their former order; the counts of texts and
  // of records cut or left out stay with the rest. Throws Error(usage) when either part would be
  // empty. With `weights`, as weighted() takes them, none of a data set of weight 0 is drawn, which
  // is no training data.
  std::pair<Dataset, Dataset> split(double val_size, uint64_t seed,
                                    std::span<const double> weights = {}) const;
  // Repeats the examples of the i-th joined data set weights[i] times: 2 is twice, 0.5 half of
  // them (at least one), 1.5 all and half of them again, drawn by `seed`. Throws Error(usage) where
  // the number of weights is not that of the data sets, and where nothing is left.
  Dataset weighted(std::span<const double> weights, uint64_t seed) const;

 private:
  friend class DatasetBuilder;
  struct Item {
    uint32_t store, index;
  };
  const TokenStore& store_of(Item item) const { return *stores_[item.store]; }
  Item item(int64_t index) const { return items_[static_cast<size_t>(index)]; }
  void require_weights(std::span<const double> weights) const;
  // The same tokens, without examples and their counts.
  Dataset without_items() const;
  void keep(Item item);
  // Takes all counts of `all` but those of what was kept.
  void count_as(const DatasetStats& all);

  std::vector<std::shared_ptr<const TokenStore>> stores_;
  std::vector<Item> items_;
  DatasetStats stats_;
  std::string fingerprint_;
};

// Throws Error(usage): no example is seen with the weights of the data sets.
[[noreturn]] void fail_without_weight();

// The number of examples with the same ids as an earlier one.
int64_t repeated_examples(const Dataset& data);
// The number of examples of `held_out` that are also in `training`: they make a model look too
// good.
int64_t leaked_examples(const Dataset& held_out, const Dataset& training);

}  // namespace jackscrew
