#include "text/dataset.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_set>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "text/shuffle.h"

namespace jackscrew {

namespace {

void check_sequence_len(int64_t sequence_len) {
  if (sequence_len < 2) {
    fail(ErrorKind::usage,
         "sequence_len {} is too short: a token is predicted from those before it", sequence_len);
  }
}

// Bytes that an example's targets stand for.
int64_t target_bytes(const Example& example, const Tokenizer& tokenizer) {
  int64_t bytes = 0;
  for (size_t i = 1; i < example.ids.size(); ++i) {
    if (example.train[i] != 0 && tokenizer.kind(example.ids[i]) != TokenKind::special) {
      bytes += static_cast<int64_t>(tokenizer.token_bytes(example.ids[i]).size());
    }
  }
  return bytes;
}

Example from_chat(const Tokenizer& tokenizer, const RenderedChat& chat) {
  EncodedSegments encoded = encode_segments(tokenizer, chat.segments);
  return {std::move(encoded.ids),
          std::move(encoded.trained),
          {narrow<int32_t>(chat.untrainable), narrow<int32_t>(encoded.unended),
           encoded.dropped_bos ? 1 : 0}};
}

// A text of its own, every token trained, special tokens in it recognised.
Example from_text(const Tokenizer& tokenizer, const std::string& text, bool end_with_eos,
                  const ProgressCallback& progress = {}) {
  Example example;
  example.ids = tokenizer.encode(text, true, progress);
  const bool has_bos = !example.ids.empty() && example.ids.front() == tokenizer.bos();
  if (tokenizer.add_bos() && !has_bos) {
    example.ids.insert(example.ids.begin(), tokenizer.bos());
  }
  const bool has_eos = !example.ids.empty() && example.ids.back() == tokenizer.eos();
  if (end_with_eos && tokenizer.eos() >= 0 && !has_eos) example.ids.push_back(tokenizer.eos());
  example.train.assign(example.ids.size(), 1);
  return example;
}

int64_t text_bytes(const Record& record) {
  struct Count {
    size_t operator()(const ConversationRecord& r) const {
      size_t bytes = 0;
      for (const Message& message : r.messages) bytes += message.content.size();
      return bytes;
    }
    size_t operator()(const CompletionRecord& r) const {
      return r.prompt.size() + r.completion.size();
    }
    size_t operator()(const TextRecord& r) const { return r.text.size(); }
    size_t operator()(const DocumentRecord& r) const { return r.text.size(); }
  };
  return static_cast<int64_t>(std::visit(Count{}, record));
}

std::string_view bytes_of(const Example& example) {
  return {reinterpret_cast<const char*>(example.ids.data()), example.ids.size() * sizeof(int32_t)};
}

}  // namespace

ChatNotes& ChatNotes::operator+=(const ChatNotes& other) {
  untrainable += other.untrainable;
  unended += other.unended;
  dropped_bos += other.dropped_bos;
  return *this;
}

std::vector<std::string> data_warnings(const DatasetStats& stats) {
  std::vector<std::string> warnings;
  if (stats.notes.untrainable > 0) {
    warnings.push_back(fmt::format(
        "{} cannot be trained: the chat template writes those turns otherwise as soon as the "
        "conversation goes on",
        counted(stats.notes.untrainable, "answer")));
  }
  if (stats.notes.unended > 0) {
    warnings.push_back(fmt::format(
        "the chat template ends {} without a special token: the model will not learn to stop",
        counted(stats.notes.unended, "answer")));
  }
  if (stats.notes.dropped_bos > 0) {
    warnings.push_back(fmt::format("{} began with BOS twice, of which one was left out",
                                   counted(stats.notes.dropped_bos, "conversation")));
  }
  return warnings;
}

int64_t Example::target_count() const {
  return train.empty() ? 0 : std::count(train.begin() + 1, train.end(), uint8_t{1});
}

Example encode_record(const Tokenizer& tokenizer, const DatasetOptions& options,
                      const Record& record, const std::string& place,
                      const ProgressCallback& progress) {
  const auto conversation = [&](std::span<const Message> messages) {
    try {
      return from_chat(tokenizer, render_chat(options.format, messages));
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("{}: {}", place, error.what()), error.hint());
    }
  };
  Example example;
  if (const auto* chat = std::get_if<ConversationRecord>(&record)) {
    example = conversation(chat->messages);
  } else if (const auto* pair = std::get_if<CompletionRecord>(&record)) {
    if (options.format.is_plain()) {
      // The plain format ends an answer in EOS and puts nothing of its own before it.
      const Message answer{"assistant", pair->completion};
      RenderedChat answered = render_chat(options.format, {&answer, 1});
      answered.segments.insert(answered.segments.begin(), Segment{pair->prompt, false, false});
      example = from_chat(tokenizer, answered);
    } else {
      const Message turns[] = {{"user", pair->prompt}, {"assistant", pair->completion}};
      example = conversation(turns);
    }
  } else if (const auto* text = std::get_if<TextRecord>(&record)) {
    example = from_text(tokenizer, text->text, true);
  } else {
    example = from_text(tokenizer, std::get<DocumentRecord>(record).text, false, progress);
  }
  if (options.train_on_inputs) std::fill(example.train.begin(), example.train.end(), uint8_t{1});
  return example;
}

Dataset::Dataset(std::vector<Example> examples, int64_t sequence_len, const Tokenizer* tokenizer) {
  check_sequence_len(sequence_len);
  for (Example& example : examples) {
    if (example.ids.size() != example.train.size()) {
      fail(ErrorKind::data, "an example has {} ids but {} train flags", example.ids.size(),
           example.train.size());
    }
    ++stats_.records;
    add(std::move(example), sequence_len, tokenizer);
  }
}

void Dataset::add(Example example, int64_t sequence_len, const Tokenizer* tokenizer) {
  stats_.notes += example.notes;
  const auto limit = static_cast<size_t>(sequence_len);
  if (example.ids.size() > limit) {
    example.ids.resize(limit);
    example.train.resize(limit);
    ++stats_.truncated;
  }
  if (example.target_count() == 0) {
    ++stats_.dropped;
    return;
  }
  example.ids.shrink_to_fit();
  example.train.shrink_to_fit();
  const int64_t bytes = tokenizer == nullptr ? 0 : target_bytes(example, *tokenizer);
  keep(std::move(example), bytes);
}

void Dataset::keep(Example example, int64_t trained_bytes) {
  ++stats_.examples;
  stats_.tokens += static_cast<int64_t>(example.ids.size());
  stats_.trained_tokens += example.target_count();
  stats_.trained_bytes += trained_bytes;
  examples_.push_back(std::move(example));
  trained_bytes_.push_back(trained_bytes);
}

Dataset Dataset::read(const std::filesystem::path& path, const Tokenizer& tokenizer,
                      const DatasetOptions& options, DataPart part,
                      const ProgressCallback& progress) {
  check_sequence_len(options.sequence_len);
  Dataset dataset;
  const auto window = static_cast<std::ptrdiff_t>(options.sequence_len);
  const auto stride = options.stride > 0 ? static_cast<std::ptrdiff_t>(options.stride) : window;
  for (const std::filesystem::path& file : data_files(path, part)) {
    const auto use = [&](const Record& record, const std::string& place) {
      ++dataset.stats_.records;
      dataset.stats_.text_bytes += text_bytes(record);
      Example example = encode_record(tokenizer, options, record, place, progress);
      if (!std::holds_alternative<DocumentRecord>(record)) {
        dataset.add(std::move(example), options.sequence_len, &tokenizer);
        return;
      }
      const int64_t examples_before = dataset.stats_.examples;
      const auto size = static_cast<std::ptrdiff_t>(example.ids.size());
      // A last window of one token would predict nothing. Where windows overlap, a token is scored
      // in the first that holds it; later ones see it as context.
      std::ptrdiff_t scored = 0;
      for (std::ptrdiff_t begin = 0; begin + 1 < size && scored < size; begin += stride) {
        const std::ptrdiff_t end = std::min(size, begin + window);
        Example part_of_text;
        part_of_text.ids.assign(example.ids.begin() + begin, example.ids.begin() + end);
        part_of_text.train.assign(part_of_text.ids.size(), 1);
        std::fill_n(part_of_text.train.begin(), scored - begin, uint8_t{0});
        scored = end;
        dataset.add(std::move(part_of_text), options.sequence_len, &tokenizer);
      }
      if (dataset.stats_.examples == examples_before) ++dataset.stats_.dropped;
    };
    read_records(file, use, progress);
  }
  if (part == DataPart::train && dataset.examples_.empty()) {
    throw Error(
        ErrorKind::data,
        fmt::format("{}: none of its {} records has a token to train on", path.string(),
                    dataset.stats_.records),
        dataset.stats_.truncated > 0 ? "raise sequence_len: answers are cut off"
        : dataset.stats_.notes.untrainable > 0
            ? "the chat template does not let answers be told from the rest: chat_template= "
              "may name another"
        : dataset.stats_.records == 0 ? "there is nothing in it: one record a line, such as "
                                        "{\"prompt\": ..., \"completion\": ...}"
                                      : "every answer in it is empty");
  }
  return dataset;
}

std::pair<Dataset, Dataset> Dataset::split(double val_size, uint64_t seed) const {
  const double wanted = val_size < 1.0
                            ? std::max(1.0, std::round(val_size * static_cast<double>(size())))
                            : std::floor(val_size);
  if (!(val_size > 0.0) || wanted >= static_cast<double>(size())) {
    throw Error(ErrorKind::usage,
                fmt::format("val_size {} cannot be split off {} examples", val_size, size()),
                "a share below 1, or a number of examples smaller than there are");
  }
  const auto count = static_cast<size_t>(wanted);
  const std::vector<int64_t> order = shuffled_order(size(), seed, 0, "validation split");
  std::vector<bool> chosen(examples_.size(), false);
  for (size_t i = 0; i < count; ++i) chosen[static_cast<size_t>(order[i])] = true;
  std::pair<Dataset, Dataset> parts;
  for (size_t i = 0; i < examples_.size(); ++i) {
    (chosen[i] ? parts.second : parts.first).keep(examples_[i], trained_bytes_[i]);
  }
  parts.second.stats_.records = parts.second.stats_.examples;
  parts.first.stats_.records = stats_.records - parts.second.stats_.records;
  parts.first.stats_.truncated = stats_.truncated;
  parts.first.stats_.dropped = stats_.dropped;
  parts.first.stats_.text_bytes = stats_.text_bytes;
  parts.first.stats_.notes = stats_.notes;
  return parts;
}

int64_t repeated_examples(const Dataset& data) {
  std::unordered_set<std::string_view> seen;
  return std::ranges::count_if(data.examples(), [&](const Example& example) {
    return !seen.insert(bytes_of(example)).second;
  });
}

int64_t leaked_examples(const Dataset& held_out, const Dataset& training) {
  if (held_out.size() == 0) return 0;
  std::unordered_set<std::string_view> seen;
  for (const Example& example : training.examples()) seen.insert(bytes_of(example));
  return std::ranges::count_if(held_out.examples(), [&](const Example& example) {
    return seen.contains(bytes_of(example));
  });
}

}  // namespace jackscrew
