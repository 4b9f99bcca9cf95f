#include "data/encode_records.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"

namespace jackscrew {

namespace {

// Bytes of text for a thread at a time: about ten milliseconds of work, so that waiting for the
// other threads costs little.
constexpr size_t kShare = size_t{256} << 10;
// The least that a record counts: it takes memory beside its text.
constexpr size_t kLeast = 256;
// Parts of documents that are encoded at once: each takes about 64 MiB, tokens included, and about
// 400 MiB where all of it is one word to the tokenizer.
constexpr size_t kMostDocuments = 8;

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
    std::vector<Encoded> encoded(found_.size());
    // The index of the first record that ends the reading. Later ones are skipped, because a
    // template that fails may take seconds on each.
    std::atomic<size_t> end = found_.size();
    parallel_for(threads_, std::ssize(found_), [&](int64_t task, int) {
      const auto i = static_cast<size_t>(task);
      if (i > end) return;
      const FoundRecord& found = found_[i];
      try {
        ParsedRecord parsed = found.parse(options_.fields);
        encoded[i].record = std::move(parsed.record);
        encoded[i].example = encode_record(tokenizer_, options_, encoded[i].record, found.place);
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
    const std::vector<FoundRecord> done = std::exchange(found_, {});
    bytes_ = 0;
    for (size_t i = 0; i < done.size(); ++i) {
      if (const std::exception_ptr& error = encoded[i].error) {
        const std::optional<Error> bad_record = left_out(error);
        if (!bad_record) std::rethrow_exception(error);
        bad_(*bad_record);
        continue;
      }
      use_(encoded[i].record, std::move(encoded[i].example), done[i].place);
    }
  }

 private:
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
