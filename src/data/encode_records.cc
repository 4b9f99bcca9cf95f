#include "data/encode_records.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/map_guard.h"
#include "base/parallel.h"
#include "base/process_memory.h"
#include "base/text.h"

namespace jackscrew {

namespace {

// Bytes of text for a thread at a time: about ten milliseconds of work, so that waiting for the
// other threads costs little.
constexpr size_t kShare = size_t{256} << 10;
// The least that a record counts: it takes memory beside its text.
constexpr size_t kLeast = 256;
// Parts of documents that are encoded at once where a memory limit leaves enough: each takes about
// 64 MiB, tokens included, and about 400 MiB where all of it is one word to the tokenizer.
constexpr size_t kMostDocuments = 8;

// What encoding takes at most for every byte of a text, in bytes of memory, but for long words. The
// most tokens are one a byte: ids of 4 bytes, of which 2/3 are there twice as the list grows from a
// third of the text (Tokenizer::encode()): 16/3; beside it what the normalizer makes of the text,
// up to 8/3 of it. Afterwards ids and flags, 5.
constexpr size_t kOfDocument = 8;
// The text parsed (and once more the row of a .csv), rendered, and put together for the tokenizer:
// 4; the ids of a piece, 4, as they join those of the whole with their flags, 5. One to spare.
constexpr size_t kOfRecord = 14;
// Parsing alone: the text as JSON (or as the row of a .csv), once more as a string grows that is
// read, as a record, and what is looked for in it.
constexpr size_t kOfParsing = 4;

constexpr const char* kShorterRecords = "shorter records and .txt files take less";

// The text for which a record takes memory: none where it is refused for its length.
size_t encoded_bytes(const FoundRecord& found) {
  return found.bytes > kMostOfRecord ? 0 : std::max(found.bytes, kLeast);
}

// The memory that a record takes at most, if it has no long word.
size_t usual_memory(const FoundRecord& found) {
  return encoded_bytes(found) * (found.is_document ? kOfDocument : kOfRecord);
}

// If all of it is one word.
size_t most_memory(const FoundRecord& found) {
  return usual_memory(found) + encoded_bytes(found) * BpeMerger::kBytesOfLongWord;
}

class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const ExampleOptions& options, int threads,
          const EncodedCallback& use, const BadRecordCallback& bad)
      : tokenizer_(tokenizer),
        options_(options),
        threads_(threads),
        batch_(kShare * static_cast<size_t>(threads)),
        use_(use),
        bad_(bad) {}

  void add(FoundRecord found) {
    bytes_ += std::clamp(found.bytes, kLeast, std::max(kShare, batch_ / kMostDocuments));
    found_.push_back(std::move(found));
    if (bytes_ >= batch_) finish();
  }

  void finish() {
    const std::vector<FoundRecord> found = std::exchange(found_, {});
    bytes_ = 0;
    std::span<const FoundRecord> rest = found;
    while (!rest.empty()) {
      const size_t count = count_at_once(rest);
      encode(rest.first(count));
      rest = rest.subspan(count);
    }
  }

 private:
  // Encodes records at once, then has them used.
  void encode(std::span<const FoundRecord> records) {
    std::vector<Encoded> encoded(records.size());
    // The index of the first record that ends the reading. Later ones are skipped, because a
    // template that fails may take seconds on each.
    std::atomic<size_t> end = records.size();
    parallel_for(threads_, std::ssize(records), [&](int64_t task, int) {
      const auto i = static_cast<size_t>(task);
      if (i > end) return;
      const FoundRecord& found = records[i];
      try {
        ParsedRecord parsed = found.parse(options_.fields);
        encoded[i].record = std::move(parsed.record);
        encoded[i].example = encode_record(tokenizer_, options_, encoded[i].record, found.place);
        // Its text is the mapped file, which may have been cut short by now.
        if (const auto* document = std::get_if<DocumentRecord>(&encoded[i].record)) {
          check_map(document->text.data(), ErrorKind::data);
        }
        encoded[i].example.notes.named_fields = std::move(parsed.named);
        encoded[i].example.notes.unread = std::move(parsed.unread);
      } catch (...) {
        encoded[i].error = std::current_exception();
        if (!left_out(encoded[i].error)) {
          size_t first = end;
          while (i < first && !end.compare_exchange_weak(first, i)) continue;
        }
      }
    });
    for (size_t i = 0; i < records.size(); ++i) {
      if (const std::exception_ptr& error = encoded[i].error) {
        const std::optional<Error> bad_record = left_out(error);
        if (!bad_record) std::rethrow_exception(error);
        bad_(*bad_record);
        continue;
      }
      use_(encoded[i].record, std::move(encoded[i].example), records[i].place);
    }
  }

  // The error of a record that is left out; nullopt: the error ends the reading.
  std::optional<Error> left_out(const std::exception_ptr& error) const {
    try {
      std::rethrow_exception(error);
    } catch (const Error& found) {
      // What cannot be read for now says nothing of its records.
      if (bad_ && found.kind() == ErrorKind::data && !is_unreadable(found)) return found;
    } catch (...) {
    }
    return std::nullopt;
  }

  struct Encoded {
    Record record;
    Example example;
    std::exception_ptr error;
  };

  const Tokenizer& tokenizer_;
  const ExampleOptions& options_;
  int threads_;
  size_t batch_;  // bytes
  const EncodedCallback& use_;
  const BadRecordCallback& bad_;
  std::vector<FoundRecord> found_;
  size_t bytes_ = 0;  // of found_, as counted in add()
};

}  // namespace

size_t count_at_once(std::span<const FoundRecord> found, const std::filesystem::path& root) {
  size_t all = 0;
  for (const FoundRecord& record : found) all += most_memory(record);
  if (fits_in_memory(static_cast<int64_t>(all), root)) return found.size();
  const auto limit = memory_limit(root);
  if (!limit) return found.size();
  auto left = static_cast<size_t>(limit->available);
  size_t count = 0;
  for (; count < found.size() && most_memory(found[count]) <= left; ++count) {
    left -= most_memory(found[count]);
  }
  if (count > 0) return count;
  require_memory_to_encode(found.front(), root);
  return 1;
}

void require_memory_to_encode(size_t bytes, TextForm form, const std::string& hint,
                              const std::filesystem::path& root) {
  const size_t of_each = form == TextForm::document ? kOfDocument : kOfRecord;
  require_memory(
      static_cast<int64_t>(bytes * of_each),
      fmt::format("encoding {} of text at a time", human_bytes(static_cast<int64_t>(bytes))), hint,
      root);
}

void require_memory_to_encode(const FoundRecord& found, const std::filesystem::path& root) {
  if (found.bytes > kMostOfRecord) return;
  require_memory_to_encode(found.bytes, found.is_document ? TextForm::document : TextForm::record,
                           kShorterRecords, root);
}

void require_memory_to_parse(const FoundRecord& found, const std::filesystem::path& root) {
  if (found.is_document || found.bytes > kMostOfRecord) return;
  const auto bytes = static_cast<int64_t>(found.bytes);
  require_memory(bytes * int64_t{kOfParsing},
                 fmt::format("{}: a record of {}", found.place, human_bytes(bytes)),
                 kShorterRecords, root);
}

void encode_records(std::span<const std::filesystem::path> files, int64_t max_records,
                    const Tokenizer& tokenizer, const ExampleOptions& options, int threads,
                    const EncodedCallback& use, const ProgressCallback& progress,
                    const BadRecordCallback& bad, DocumentParts parts) {
  Encoder encoder(tokenizer, options, threads, use, bad);
  const auto add = [&](FoundRecord found) {
    encoder.add(std::move(found));
    return true;
  };
  try {
    find_records(files, max_records, add, progress, parts);
  } catch (const Error&) {
    encoder.finish();  // errors in earlier records are reported first
    throw;
  }
  encoder.finish();
}

}  // namespace jackscrew
