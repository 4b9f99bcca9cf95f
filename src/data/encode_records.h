// Encodes the records of files as examples, on several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "base/error.h"
#include "data/example.h"

namespace jackscrew {

// Receives a record, its example and its place.
using EncodedCallback = std::function<void(const Record&, Example, const std::string& place)>;

// Receives the error of a record that is left out.
using BadRecordCallback = std::function<void(const Error&)>;

// How many of some records are encoded at once, at least one: as many as the memory limit leaves
// enough for, whatever is in them. Throws Error(does_not_fit) where the first does not fit alone,
// even if it has no long word; Tokenizer::encode() sees to those. `root`: see memory_limit().
size_t count_at_once(std::span<const FoundRecord> found, const std::filesystem::path& root = "/");

// What encoding does with a text before it is cut into tokens.
enum class TextForm : uint8_t {
  document,  // nothing: it is encoded where it lies
  record     // it is parsed or copied, rendered and put together
};

// Throws Error(does_not_fit) where the memory limit does not leave what a text of so many bytes
// takes to be encoded, if it has no long word.
void require_memory_to_encode(size_t bytes, TextForm form, const std::string& hint,
                              const std::filesystem::path& root = "/");
// The same for a record that is still to be parsed. Here and below, one that is too long to be
// parsed takes nothing.
void require_memory_to_encode(const FoundRecord& found, const std::filesystem::path& root = "/");
// Throws Error(does_not_fit) where the memory limit does not leave what parsing a record takes.
void require_memory_to_parse(const FoundRecord& found, const std::filesystem::path& root = "/");

// find_records(), with encode_record() applied to each record. `use` is called on this thread, for
// one record after another in the order of the files, whatever the number of threads and whatever
// is left of a memory limit, which count_at_once() heeds; the first error in that order is the one
// thrown. If `bad` is given, it receives the errors of records that cannot be read or encoded, and
// the others are used: Error(data) is thrown only for what is not the fault of a single record.
void encode_records(std::span<const std::filesystem::path> files, int64_t max_records,
                    const Tokenizer& tokenizer, const ExampleOptions& options, int threads,
                    const EncodedCallback& use, const ProgressCallback& progress = {},
                    const BadRecordCallback& bad = {}, DocumentParts parts = DocumentParts::all);

}  // namespace jackscrew
