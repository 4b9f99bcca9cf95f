#include "data/batch.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "data/example_list.h"
#include "data/shuffle.h"

namespace jackscrew {

namespace {

void add_micro_batch(StepBatch& step, MicroBatch micro_batch) {
  step.targets += micro_batch.target_count;
  step.tokens += micro_batch.tokens();
  step.micro_batches.push_back(std::move(micro_batch));
}

// The most bytes of a step of so many tokens in at most so many sequences.
int64_t batch_bytes(int64_t tokens, int64_t sequences, int64_t micro_batches) {
  constexpr int64_t kIndex = sizeof(int32_t);
  // A sequence has a target, and so two tokens at least.
  const int64_t indices = 3 * tokens + std::min(sequences, tokens / 2) + micro_batches;
  return kIndex * indices + micro_batches * static_cast<int64_t>(sizeof(MicroBatch));
}

// The most bytes that planning an epoch takes at once, see pack_best_fit(). What follows it takes
// no more, since there are no more rows than examples: the shuffled rows beside those in order and
// their permutation (8 an example and 12 a row), then the tokens before each step (4 an example, 4
// a row and 8 a step).
int64_t epoch_bytes(int64_t examples, int64_t rows) {
  return 12 * examples + 8 * rows;
}

// Enough that the work between two calls costs nothing, few enough to take little memory.
constexpr int64_t kEvaluatedAtOnce = 64;  // micro-batches

}  // namespace

TargetRows MicroBatch::target_rows() const {
  TargetRows out;
  out.rows.reserve(static_cast<size_t>(target_count));
  out.targets.reserve(static_cast<size_t>(target_count));
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] < 0) continue;
    out.rows.push_back(narrow<int32_t>(t));
    out.targets.push_back(targets[t]);
  }
  return out;
}

void MicroBatch::append(const Example& example, int64_t virtual_tokens) {
  if (example.ids.empty()) fail(ErrorKind::data, "an empty example cannot be a sequence");
  const int64_t size = std::ssize(example.ids);
  const auto end = narrow<int32_t>(checked_add(checked_add(tokens(), virtual_tokens), size));
  if (cu_seqlens.empty()) cu_seqlens.push_back(0);
  ids.insert(ids.end(), static_cast<size_t>(virtual_tokens), 0);
  targets.insert(targets.end(), static_cast<size_t>(virtual_tokens), -1);
  ids.insert(ids.end(), example.ids.begin(), example.ids.end());
  for (int64_t i = 0; i < size; ++i) {
    const auto next = static_cast<size_t>(i + 1);
    const bool trained = i + 1 < size && example.train[next] != 0;
    targets.push_back(trained ? example.ids[next] : -1);
    target_count += trained ? 1 : 0;
  }
  for (int32_t i = 0; std::ssize(positions) < end; ++i) positions.push_back(i);
  cu_seqlens.push_back(end);
}

void MicroBatch::reserve(int64_t tokens, int64_t sequences) {
  for (auto* of_tokens : {&ids, &positions, &targets}) {
    of_tokens->reserve(static_cast<size_t>(tokens));
  }
  cu_seqlens.reserve(static_cast<size_t>(sequences + 1));
}

std::span<const uint32_t> Rows::rows(int64_t begin, int64_t end) const {
  const uint32_t first = begins[static_cast<size_t>(begin)];
  return std::span(examples).subspan(first, begins[static_cast<size_t>(end)] - first);
}

void Rows::append(std::span<const uint32_t> row) {
  examples.insert(examples.end(), row.begin(), row.end());
  begins.push_back(static_cast<uint32_t>(examples.size()));
}

Rows pack_best_fit(std::vector<int32_t> lengths, std::vector<uint32_t> order, int64_t capacity) {
  // Longest first from here on.
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return lengths[a] > lengths[b]; });
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  std::vector<uint32_t> row_of;  // [examples], in that order
  row_of.reserve(order.size());
  // Rows with the same room lie on each other, the last one to get there on top.
  std::map<int64_t, uint32_t> top_by_room;
  std::vector<uint32_t> below;  // [rows]: kNone at the bottom
  below.reserve(order.size());  // what is not written to takes no memory
  for (const uint32_t example : order) {
    const int64_t size = lengths[example];
    if (size > capacity) {
      fail(ErrorKind::data, "an example of {} tokens is longer than a row of {}", size, capacity);
    }
    const auto fullest = top_by_room.lower_bound(size);
    auto row = static_cast<uint32_t>(below.size());
    int64_t room = capacity;
    if (fullest == top_by_room.end()) {
      below.push_back(kNone);
    } else {
      row = fullest->second;
      room = fullest->first;
      fullest->second = below[row];
      if (fullest->second == kNone) top_by_room.erase(fullest);
    }
    row_of.push_back(row);
    uint32_t& top = top_by_room.try_emplace(room - size, kNone).first->second;
    below[row] = std::exchange(top, row);
  }
  std::vector<int32_t>().swap(lengths);
  Rows rows;
  rows.begins.assign(below.size() + 1, 0);
  for (const uint32_t row : row_of) ++rows.begins[row + size_t{1}];
  std::partial_sum(rows.begins.begin(), rows.begins.end(), rows.begins.begin());
  std::vector<uint32_t>& next = below;  // [rows]: where the row's next example goes
  std::copy(rows.begins.begin(), rows.begins.end() - 1, next.begin());
  rows.examples.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) rows.examples[next[row_of[i]]++] = order[i];
  return rows;
}

void require_micro_batch(int64_t micro_batch_size, int64_t sequence_len, int64_t most) {
  if (micro_batch_size <= most / sequence_len) return;
  throw Error(ErrorKind::usage,
              fmt::format("micro_batch_size {} x sequence_len {} is more than the {} tokens that "
                          "a micro-batch can have",
                          micro_batch_size, sequence_len, most),
              micro_batch_size == 1
                  ? fmt::format("use sequence_len={} or less", most)
                  : "lower micro_batch_size and raise gradient_accumulation_steps");
}

BatchSampler::BatchSampler(const Dataset& dataset, const BatchOptions& options,
                           const fs::path& root)
    : dataset_(&dataset), options_(options) {
  if (options.sequence_len < 1 || options.micro_batch_size < 1 ||
      options.gradient_accumulation_steps < 1) {
    fail(ErrorKind::usage,
         "sequence_len {}, micro_batch_size {} and gradient_accumulation_steps {} "
         "must be at least 1",
         options.sequence_len, options.micro_batch_size, options.gradient_accumulation_steps);
  }
  if (dataset.size() == 0) fail(ErrorKind::data, "there are no examples to train on");
  for (int64_t i = 0; i < dataset.size(); ++i) {
    if (length(i) > options.sequence_len) {
      fail(ErrorKind::data, "an example of {} tokens is longer than sequence_len {}", length(i),
           options.sequence_len);
    }
    tokens_per_epoch_ += length(i);
    longest_ = std::max(longest_, length(i));
  }
  // Positions of a micro-batch are counted in 32 bits.
  require_micro_batch(options.micro_batch_size, options.sequence_len,
                      std::numeric_limits<int32_t>::max());
  rows_per_step_ = checked_mul(options.micro_batch_size, options.gradient_accumulation_steps);
  require_memory(epoch_bytes(dataset.size(), most_rows()),
                 fmt::format("planning an epoch of {} {}", dataset.size(), kExamples),
                 kFewerRecords, root);
  // Every epoch has the same number of rows, see pack_best_fit().
  auto first = std::make_shared<const Epoch>(plan(0));
  rows_per_epoch_ = first->rows.size();
  steps_per_epoch_ = ceil_div(rows_per_epoch_, rows_per_step_);
  cached_ = std::move(first);
}

int64_t BatchSampler::most_rows() const {
  if (!options_.packing) return dataset_->size();
  // A row is begun where none has room, so that any two have more than sequence_len tokens.
  return std::min(dataset_->size(), 2 * (tokens_per_epoch_ / options_.sequence_len) + 1);
}

double BatchSampler::fill_rate() const {
  return static_cast<double>(tokens_per_epoch_) /
         (static_cast<double>(rows_per_epoch_) * static_cast<double>(options_.sequence_len));
}

int64_t BatchSampler::step_bytes() const {
  const int64_t rows = std::min(rows_per_step_, rows_per_epoch_);
  const int64_t longest_row = options_.packing ? options_.sequence_len : longest_;
  return batch_bytes(std::min(rows * longest_row, tokens_per_epoch_),
                     options_.packing ? dataset_->size() : rows,
                     ceil_div(rows, options_.micro_batch_size));
}

int64_t BatchSampler::planning_bytes() const {
  const int64_t examples = dataset_->size();
  const int64_t planning = epoch_bytes(examples, rows_per_epoch_);
  const int64_t held = 4 * (examples + rows_per_epoch_) + 8 * steps_per_epoch_;
  return std::max<int64_t>(0, planning - held);  // the epoch before goes first
}

Rows BatchSampler::rows_in_order(int64_t number) const {
  std::vector<uint32_t> order = shuffled_order(dataset_->size(), options_.seed, number, "examples");
  if (options_.packing) {
    std::vector<int32_t> lengths;
    lengths.reserve(order.size());
    for (int64_t i = 0; i < dataset_->size(); ++i) lengths.push_back(narrow<int32_t>(length(i)));
    return pack_best_fit(std::move(lengths), std::move(order), options_.sequence_len);
  }
  Rows rows;
  rows.begins.resize(order.size() + 1);
  std::iota(rows.begins.begin(), rows.begins.end(), uint32_t{0});
  rows.examples = std::move(order);
  return rows;
}

BatchSampler::Epoch BatchSampler::plan(int64_t number) const {
  Epoch epoch;
  epoch.number = number;
  {
    // Packing returns the longest examples first; shuffled, a row's length says nothing about its
    // step.
    const Rows in_order = rows_in_order(number);
    epoch.rows.examples.reserve(in_order.examples.size());
    epoch.rows.begins.reserve(in_order.begins.size());
    for (const uint32_t row : shuffled_order(in_order.size(), options_.seed, number, "rows")) {
      epoch.rows.append(in_order.row(row));
    }
  }
  epoch.tokens_before.reserve(static_cast<size_t>(ceil_div(epoch.rows.size(), rows_per_step_) + 1));
  epoch.tokens_before.push_back(0);
  int64_t tokens = 0;
  for (int64_t row = 0; row < epoch.rows.size(); ++row) {
    for (const uint32_t example : epoch.rows.row(row)) tokens += length(example);
    const bool step_ends = (row + 1) % rows_per_step_ == 0;
    if (step_ends || row + 1 == epoch.rows.size()) epoch.tokens_before.push_back(tokens);
  }
  return epoch;
}

std::shared_ptr<const BatchSampler::Epoch> BatchSampler::epoch(int64_t number) const {
  {
    const std::lock_guard lock(mutex_);
    if (cached_ && cached_->number == number) return cached_;
    cached_.reset();  // the memory of two at once is not counted on
  }
  auto planned = std::make_shared<const Epoch>(plan(number));
  const std::lock_guard lock(mutex_);
  cached_ = planned;
  return planned;
}

StepBatch BatchSampler::step(int64_t index) const {
  if (index < 0) fail(ErrorKind::usage, "step {} does not exist", index);
  const std::shared_ptr<const Epoch> rows_of = epoch(index / steps_per_epoch_);
  const int64_t step_in_epoch = index % steps_per_epoch_;
  const int64_t begin = step_in_epoch * rows_per_step_;
  const int64_t end = std::min(rows_per_epoch_, begin + rows_per_step_);
  StepBatch step;
  step.first_token = checked_add(checked_mul(rows_of->number, tokens_per_epoch_),
                                 rows_of->tokens_before[static_cast<size_t>(step_in_epoch)]);
  step.micro_batches.reserve(static_cast<size_t>(ceil_div(end - begin, options_.micro_batch_size)));
  for (int64_t first = begin; first < end; first += options_.micro_batch_size) {
    MicroBatch micro_batch;
    const std::span<const uint32_t> examples =
        rows_of->rows.rows(first, std::min(end, first + options_.micro_batch_size));
    int64_t tokens = 0;
    for (const uint32_t example : examples) tokens += length(example);
    micro_batch.reserve(tokens, std::ssize(examples));
    for (const uint32_t example : examples) {
      micro_batch.append(dataset_->example(example), options_.virtual_tokens);
    }
    add_micro_batch(step, std::move(micro_batch));
  }
  return step;
}

EvaluationBatches::EvaluationBatches(const Dataset& dataset, int64_t max_tokens,
                                     int64_t virtual_tokens)
    : dataset_(&dataset), max_tokens_(max_tokens), virtual_tokens_(virtual_tokens) {
  if (max_tokens < 1) fail(ErrorKind::usage, "micro batches of {} tokens do not exist", max_tokens);
}

StepBatch EvaluationBatches::next() {
  StepBatch step;
  step.micro_batches.reserve(kEvaluatedAtOnce);
  while (example_ < dataset_->size() && std::ssize(step.micro_batches) < kEvaluatedAtOnce) {
    int64_t tokens = 0;
    int64_t end = example_;
    for (; end < dataset_->size(); ++end) {
      const int64_t more = virtual_tokens_ + dataset_->length(end);
      if (tokens > 0 && tokens + more > max_tokens_) break;
      tokens += more;
    }
    MicroBatch micro_batch;
    micro_batch.reserve(tokens, end - example_);
    for (; example_ < end; ++example_) {
      micro_batch.append(dataset_->example(example_), virtual_tokens_);
    }
    add_micro_batch(step, std::move(micro_batch));
  }
  return step;
}

int64_t EvaluationBatches::step_bytes() const {
  int64_t all = 0;
  int64_t longest = max_tokens_;
  for (int64_t i = 0; i < dataset_->size(); ++i) {
    const int64_t tokens = virtual_tokens_ + dataset_->length(i);
    all += tokens;
    longest = std::max(longest, tokens);
  }
  // The quotient keeps a max_tokens without bounds from overflowing.
  const int64_t most = longest > all / kEvaluatedAtOnce ? all : kEvaluatedAtOnce * longest;
  return batch_bytes(most, dataset_->size(), std::min(dataset_->size(), kEvaluatedAtOnce));
}

}  // namespace jackscrew
