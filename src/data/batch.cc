#include "data/batch.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/checked.h"
#include "base/error.h"
#include "data/shuffle.h"

namespace jackscrew {

namespace {

void add_micro_batch(StepBatch& step, MicroBatch micro_batch) {
  step.targets += micro_batch.target_count;
  step.tokens += micro_batch.tokens();
  step.micro_batches.push_back(std::move(micro_batch));
}

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

std::span<const int64_t> Rows::row(int64_t index) const {
  const auto i = static_cast<size_t>(index);
  return std::span(examples).subspan(static_cast<size_t>(begins[i]),
                                     static_cast<size_t>(begins[i + 1] - begins[i]));
}

void Rows::append(std::span<const int64_t> row) {
  examples.insert(examples.end(), row.begin(), row.end());
  begins.push_back(std::ssize(examples));
}

Rows pack_best_fit(std::span<const int64_t> lengths, std::span<const int64_t> order,
                   int64_t capacity) {
  std::vector<int64_t> by_length(order.begin(), order.end());
  const auto length_of = [&](int64_t i) { return lengths[static_cast<size_t>(i)]; };
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](int64_t a, int64_t b) { return length_of(a) > length_of(b); });
  std::vector<size_t> row_of;  // [examples], in the order of by_length
  row_of.reserve(by_length.size());
  std::vector<int64_t> counts;  // [rows]
  std::map<int64_t, std::vector<size_t>> rows_by_room;
  for (const int64_t example : by_length) {
    const int64_t size = length_of(example);
    if (size > capacity) {
      fail(ErrorKind::data, "an example of {} tokens is longer than a row of {}", size, capacity);
    }
    auto fullest = rows_by_room.lower_bound(size);
    size_t row = counts.size();
    int64_t room = capacity;
    if (fullest == rows_by_room.end()) {
      counts.push_back(0);
    } else {
      row = fullest->second.back();
      room = fullest->first;
      fullest->second.pop_back();
      if (fullest->second.empty()) rows_by_room.erase(fullest);
    }
    ++counts[row];
    row_of.push_back(row);
    rows_by_room[room - size].push_back(row);
  }
  Rows rows;
  for (const int64_t count : counts) rows.begins.push_back(rows.begins.back() + count);
  rows.examples.resize(by_length.size());
  std::vector<int64_t> next(rows.begins.begin(), rows.begins.end() - 1);  // [rows]
  for (size_t i = 0; i < by_length.size(); ++i) {
    rows.examples[static_cast<size_t>(next[row_of[i]]++)] = by_length[i];
  }
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

BatchSampler::BatchSampler(const Dataset& dataset, const BatchOptions& options)
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
  }
  // Positions of a micro-batch are counted in 32 bits.
  require_micro_batch(options.micro_batch_size, options.sequence_len,
                      std::numeric_limits<int32_t>::max());
  rows_per_step_ = checked_mul(options.micro_batch_size, options.gradient_accumulation_steps);
  // Every epoch has the same number of rows, see pack_best_fit().
  auto first = std::make_shared<const Epoch>(plan(0));
  rows_per_epoch_ = first->rows.size();
  steps_per_epoch_ = ceil_div(rows_per_epoch_, rows_per_step_);
  cached_ = std::move(first);
}

double BatchSampler::fill_rate() const {
  return static_cast<double>(tokens_per_epoch_) /
         (static_cast<double>(rows_per_epoch_) * static_cast<double>(options_.sequence_len));
}

BatchSampler::Epoch BatchSampler::plan(int64_t number) const {
  const std::vector<int64_t> order =
      shuffled_order(dataset_->size(), options_.seed, number, "examples");
  Rows packed;
  if (options_.packing) {
    std::vector<int64_t> lengths;
    lengths.reserve(order.size());
    for (int64_t i = 0; i < dataset_->size(); ++i) lengths.push_back(length(i));
    packed = pack_best_fit(lengths, order, options_.sequence_len);
  } else {
    for (const int64_t& example : order) packed.append({&example, 1});
  }
  // Packing returns the longest examples first; shuffled, a row's length says nothing about its
  // step.
  Epoch epoch;
  epoch.number = number;
  for (const int64_t row : shuffled_order(packed.size(), options_.seed, number, "rows")) {
    epoch.rows.append(packed.row(row));
  }
  epoch.tokens_before.push_back(0);
  int64_t tokens = 0;
  for (int64_t row = 0; row < epoch.rows.size(); ++row) {
    for (const int64_t example : epoch.rows.row(row)) tokens += length(example);
    const bool step_ends = (row + 1) % rows_per_step_ == 0;
    if (step_ends || row + 1 == epoch.rows.size()) epoch.tokens_before.push_back(tokens);
  }
  return epoch;
}

std::shared_ptr<const BatchSampler::Epoch> BatchSampler::epoch(int64_t number) const {
  {
    const std::lock_guard lock(mutex_);
    if (cached_->number == number) return cached_;
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
  for (int64_t first = begin; first < end; first += options_.micro_batch_size) {
    MicroBatch micro_batch;
    for (int64_t row = first; row < std::min(end, first + options_.micro_batch_size); ++row) {
      for (const int64_t example : rows_of->rows.row(row)) {
        micro_batch.append(dataset_->example(example), options_.virtual_tokens);
      }
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
  // Enough that the work between two calls costs nothing, few enough to take little memory.
  constexpr size_t kMicroBatches = 64;
  StepBatch step;
  MicroBatch micro_batch;
  for (; example_ < dataset_->size(); ++example_) {
    if (micro_batch.tokens() > 0 &&
        micro_batch.tokens() + virtual_tokens_ + dataset_->length(example_) > max_tokens_) {
      add_micro_batch(step, std::exchange(micro_batch, MicroBatch{}));
      if (step.micro_batches.size() == kMicroBatches) return step;
    }
    micro_batch.append(dataset_->example(example_), virtual_tokens_);
  }
  if (micro_batch.tokens() > 0) add_micro_batch(step, std::move(micro_batch));
  return step;
}

}  // namespace jackscrew
