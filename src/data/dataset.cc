#include "data/dataset.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "data/dataset_builder.h"
#include "data/example_list.h"
#include "data/shuffle.h"

namespace jackscrew {

namespace {

// A hash of the ids alone, whatever is trained.
uint64_t hash_of(const Example& example) {
  return std::hash<std::string_view>{}(std::string_view(
      reinterpret_cast<const char*>(example.ids.data()), example.ids.size() * sizeof(int32_t)));
}

std::vector<uint64_t> sorted_hashes(const Dataset& data) {
  std::vector<uint64_t> hashes;
  reserve_within_limit(hashes, static_cast<size_t>(data.size()), kExamples);
  for (int64_t i = 0; i < data.size(); ++i) hashes.push_back(hash_of(data.example(i)));
  std::ranges::sort(hashes);
  return hashes;
}

constexpr const char* kBetweenFingerprints = "; ";

// How bytes that are not UTF-8 become tokens, for a warning.
std::string tokens_of_bytes(const RecordNotes& notes) {
  constexpr const char* kWithout =
      "as the unknown token or not at all, since the tokenizer has no token for them";
  if (notes.without_token == 0) return "as single bytes";
  if (notes.without_token == notes.not_utf8) return kWithout;
  return fmt::format("as single bytes, {} of them {}", notes.without_token, kWithout);
}

using Warnings = std::vector<std::string>;

// Warns of records that are not read, or not to their end.
void add_record_warnings(const DatasetStats& stats, TargetUse use, Warnings& to) {
  if (stats.bad > 0) {
    to.push_back(fmt::format("skipped {} of {} that cannot be read; the first: {}", stats.bad,
                             counted(stats.records, "record"), stats.first_bad));
  }
  // Below this share only the count is reported: every data set has some long records.
  constexpr double kManyCut = 0.05;
  if (static_cast<double>(stats.truncated) >= kManyCut * static_cast<double>(stats.records) &&
      stats.truncated > 0 && use != TargetUse::none) {
    const std::string limit =
        stats.room == 0
            ? "sequence_len"
            : fmt::format("the {} tokens that virtual ones leave of sequence_len", stats.room);
    to.push_back(fmt::format(
        "{} of {} {} longer than {} and cut: the end of the text or the answer is lost; the "
        "longest has {} tokens",
        stats.truncated, counted(stats.records, "record"), stats.truncated == 1 ? "is" : "are",
        limit, stats.longest));
  }
}

void add_answer_warnings(const RecordNotes& notes, TargetUse use, Warnings& to) {
  const bool learns = use == TargetUse::learned;
  if (notes.untrainable > 0 && use != TargetUse::none) {
    const std::string way_on =
        notes.thoughtless == 0 ? ""
        : notes.untrainable == 1
            ? "; with a reasoning_content beside its content it can"
            : fmt::format("; with a reasoning_content beside their content {} of them can",
                          notes.thoughtless);
    const char* them = notes.untrainable == 1 ? "it" : "them";
    to.push_back(fmt::format(
        "{} cannot be {}: the chat template does not write {} as its generation prompt begins {}, "
        "changes {} once the conversation continues, or has {} outside of {{% generation %}}{}",
        counted(notes.untrainable, "answer"), learns ? "trained on" : "scored", them, them, them,
        them, way_on));
  }
  if (notes.after_part_of_prompt > 0 && learns) {
    to.push_back(fmt::format(
        "{} without the end of the chat template's generation prompt, such as <think>, "
        "which the template does not write before an answer that is there",
        counted(notes.after_part_of_prompt, "answer is learned", "answers are learned")));
  }
  if (notes.unended > 0 && learns) {
    to.push_back(fmt::format(
        "the chat template ends {} without a special token: the model will not learn to stop",
        counted(notes.unended, "answer")));
  }
}

// Warns of parts of records that are not read, or not as they are.
void add_text_warnings(const DatasetStats& stats, TargetUse use, bool all_read, Warnings& to) {
  const RecordNotes& notes = stats.notes;
  for (const auto& [field, records] : notes.named_fields) {
    if (records > 0) continue;
    to.push_back(fmt::format(
        "{} names a key that {} has: what is meant is not read", field,
        all_read ? "no record" : fmt::format("no record of the {} read", stats.records)));
  }
  for (const auto& [text, records] : notes.unread) {
    to.push_back(
        fmt::format("{} {} {}", counted(records, "record"), records == 1 ? "has" : "have", text));
  }
  if (notes.dropped_bos > 0) {
    to.push_back(fmt::format("{} began with two BOS tokens; one was removed",
                             counted(notes.dropped_bos, "conversation")));
  }
  if (notes.unused_tools > 0) {
    to.push_back(fmt::format("{} with tools, which the chat template ignores",
                             counted(notes.unused_tools, "conversation")));
  }
  if (notes.unused_thoughts > 0) {
    to.push_back(fmt::format(
        "{} with what a model thought (reasoning_content), which the chat template ignores",
        counted(notes.unused_thoughts, "conversation")));
  }
  if (notes.empty > 0) {
    to.push_back(
        fmt::format("{} an empty text or answer",
                    counted(notes.empty, "record") + (notes.empty == 1 ? " has" : " have")));
  }
  if (notes.not_utf8 > 0) {
    to.push_back(
        fmt::format("{} of text {} not UTF-8 and {} {}: save files of another encoding as UTF-8",
                    counted(notes.not_utf8, "byte"), notes.not_utf8 == 1 ? "is" : "are",
                    use == TargetUse::learned ? "learned" : "read", tokens_of_bytes(notes)));
  }
  if (notes.zero_bytes > 0) {
    to.push_back(fmt::format(
        "{} of text {} 0, as in UTF-16 and in files that are not text: save files of another "
        "encoding as UTF-8",
        counted(notes.zero_bytes, "byte"), notes.zero_bytes == 1 ? "is" : "are"));
  }
  if (notes.json_lines > 0) {
    to.push_back(fmt::format(
        "{} like JSON Lines and {} read as plain text: name files of records .jsonl",
        counted(notes.json_lines, ".txt file") + (notes.json_lines == 1 ? " looks" : " look"),
        notes.json_lines == 1 ? "is" : "are"));
  }
}

}  // namespace

void DatasetStats::add_bad(const std::string& what) {
  ++records;
  ++bad;
  if (first_bad.empty()) first_bad = what;
}

DatasetStats& DatasetStats::operator+=(const DatasetStats& other) {
  for (const auto& [name, count] : kDatasetCounts) this->*count += other.*count;
  longest = std::max(longest, other.longest);
  room = std::max(room, other.room);
  if (first_bad.empty()) first_bad = other.first_bad;
  notes += other.notes;
  return *this;
}

std::vector<std::string> data_warnings(const DatasetStats& stats, TargetUse use, bool all_read) {
  Warnings warnings;
  add_record_warnings(stats, use, warnings);
  add_answer_warnings(stats.notes, use, warnings);
  add_text_warnings(stats, use, all_read, warnings);
  return warnings;
}

Dataset::Dataset(std::vector<Example> examples, int64_t sequence_len, const Tokenizer* tokenizer) {
  DatasetOptions options;
  options.sequence_len = sequence_len;
  DatasetBuilder builder(tokenizer, options);
  for (Example& example : examples) {
    if (example.ids.size() != example.train.size()) {
      fail(ErrorKind::data, "an example has {} ids but {} train flags", example.ids.size(),
           example.train.size());
    }
    builder.add_record(std::move(example), "an example");
  }
  *this = builder.finish({});
}

Dataset Dataset::join(std::span<const Dataset> parts) {
  Dataset all;
  size_t size = 0;
  for (const Dataset& part : parts) size += part.items_.size();
  reserve_within_limit(all.items_, size, kExamples);
  for (const Dataset& part : parts) {
    const auto first = narrow<uint32_t>(all.stores_.size());
    all.stores_.insert(all.stores_.end(), part.stores_.begin(), part.stores_.end());
    for (const Item item : part.items_) all.items_.push_back({first + item.store, item.index});
    all.stats_ += part.stats_;
    all.fingerprint_ += (all.fingerprint_.empty() ? "" : kBetweenFingerprints) + part.fingerprint_;
  }
  return all;
}

int64_t Dataset::longest_fingerprint(int64_t parts) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::string one = DatasetBuilder::fingerprint_text(kMost, kMost, 0);
  const int64_t between = std::ssize(std::string_view(kBetweenFingerprints));
  return checked_add(checked_mul(parts, std::ssize(one)), checked_mul(parts - 1, between));
}

Example Dataset::example(int64_t index) const {
  return store_of(item(index)).example(item(index).index);
}

int64_t Dataset::length(int64_t index) const {
  return store_of(item(index)).length(item(index).index);
}

Dataset Dataset::without_items() const {
  Dataset out;
  out.stores_ = stores_;
  out.fingerprint_ = fingerprint_;
  return out;
}

void Dataset::keep(Item item) {
  const TokenStore& store = store_of(item);
  ++stats_.examples;
  stats_.tokens += store.length(item.index);
  stats_.trained_tokens += store.targets(item.index);
  stats_.trained_bytes += store.trained_bytes(item.index);
  append_within_limit(items_, item, kExamples);
}

void Dataset::count_as(const DatasetStats& all) {
  const DatasetStats kept = std::exchange(stats_, all);
  stats_.examples = kept.examples;
  stats_.tokens = kept.tokens;
  stats_.trained_tokens = kept.trained_tokens;
  stats_.trained_bytes = kept.trained_bytes;
}

void Dataset::require_weights(std::span<const double> weights) const {
  if (weights.size() != stores_.size()) {
    fail(ErrorKind::usage, "{} weights for {} data sets", weights.size(), stores_.size());
  }
}

std::pair<Dataset, Dataset> Dataset::split(double val_size, uint64_t seed,
                                           std::span<const double> weights) const {
  if (!weights.empty()) require_weights(weights);
  const auto is_drawn = [&](size_t store) { return weights.empty() || weights[store] > 0.0; };
  std::vector<size_t> drawn_from;  // indices of items
  for (size_t i = 0; i < items_.size(); ++i) {
    if (is_drawn(items_[i].store)) append_within_limit(drawn_from, i, kExamples);
  }
  const auto most = static_cast<double>(drawn_from.size());
  const double wanted =
      val_size < 1.0 ? std::max(1.0, std::round(val_size * most)) : std::floor(val_size);
  const std::string examples = counted(std::ssize(drawn_from), "example");
  if (!(val_size > 0.0) || wanted >= most) {
    throw Error(ErrorKind::usage,
                fmt::format("val_size {} is too large for {}", val_size, examples),
                "a fraction below 1, or a number of examples smaller than there are");
  }
  const auto count = static_cast<size_t>(wanted);
  require_memory_for<uint32_t>(drawn_from.size(), kExamples);
  const std::vector<uint32_t> order =
      shuffled_order(std::ssize(drawn_from), seed, 0, "validation split");
  std::vector<bool> chosen(items_.size(), false);
  for (size_t i = 0; i < count; ++i) chosen[drawn_from[order[i]]] = true;
  std::pair<Dataset, Dataset> parts{without_items(), without_items()};
  for (size_t i = 0; i < items_.size(); ++i) {
    (chosen[i] ? parts.second : parts.first).keep(items_[i]);
  }
  parts.second.fingerprint_ =
      fmt::format("{} of {} drawn by seed {}, of {}", count, examples, seed, fingerprint_);
  for (size_t store = 0; store < stores_.size(); ++store) {
    if (!is_drawn(store)) {
      parts.second.fingerprint_ +=
          fmt::format("{}without data set {}", kBetweenFingerprints, store + 1);
    }
  }
  DatasetStats& split_off = parts.second.stats_;
  split_off.records = split_off.examples;
  parts.first.count_as(stats_);
  parts.first.stats_.records -= split_off.records;
  return parts;
}

Dataset Dataset::weighted(std::span<const double> weights, uint64_t seed) const {
  require_weights(weights);
  std::vector<std::vector<Item>> of_store(stores_.size());
  for (const Item item : items_) append_within_limit(of_store[item.store], item, kExamples);
  Dataset out = without_items();
  for (size_t s = 0; s < of_store.size(); ++s) {
    const std::vector<Item>& items = of_store[s];
    const double whole = std::floor(weights[s]);
    const double share = (weights[s] - whole) * static_cast<double>(items.size());
    // However small the weight, something is seen of what is to be learned.
    const double least = whole == 0.0 && share > 0.0 ? 1.0 : 0.0;
    const auto drawn = static_cast<size_t>(std::max(std::round(share), least));
    require_memory_for<uint32_t>(items.size(), kExamples);
    const std::vector<uint32_t> order =
        shuffled_order(std::ssize(items), seed, static_cast<int64_t>(s), "data weights");
    require_memory_for<int64_t>(items.size(), kExamples);
    std::vector<int64_t> times(items.size(), static_cast<int64_t>(whole));
    for (size_t i = 0; i < drawn; ++i) ++times[order[i]];
    for (size_t i = 0; i < items.size(); ++i) {
      for (int64_t time = 0; time < times[i]; ++time) out.keep(items[i]);
    }
  }
  if (out.size() == 0) fail_without_weight();
  out.count_as(stats_);
  return out;
}

void fail_without_weight() {
  throw Error(ErrorKind::usage, "data_weights leave nothing to train on",
              "a weight says how often a data set's examples are seen in an epoch");
}

int64_t repeated_examples(const Dataset& data) {
  const std::vector<uint64_t> hashes = sorted_hashes(data);
  int64_t repeated = 0;
  for (size_t i = 1; i < hashes.size(); ++i) repeated += hashes[i] == hashes[i - 1] ? 1 : 0;
  return repeated;
}

int64_t leaked_examples(const Dataset& held_out, const Dataset& training) {
  if (held_out.size() == 0) return 0;
  // Held-out examples are few: their hashes are kept in memory while the training examples are
  // streamed.
  const std::vector<uint64_t> hashes = sorted_hashes(held_out);
  std::vector<bool> leaked(hashes.size(), false);
  for (int64_t i = 0; i < training.size(); ++i) {
    const uint64_t hash = hash_of(training.example(i));
    const auto [begin, end] = std::equal_range(hashes.begin(), hashes.end(), hash);
    const auto first = leaked.begin() + (begin - hashes.begin());
    if (begin != end && !*first) std::fill_n(first, end - begin, true);
  }
  return std::count(leaked.begin(), leaked.end(), true);
}

}  // namespace jackscrew
