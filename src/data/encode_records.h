// Records of files as examples, encoded by several threads.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "base/error.h"
#include "data/example.h"

namespace jackscrew {

// Takes a record, its example and its place.
using EncodedCallback = std::function<void(const Record&, Example, const std::string& place)>;

// What is wrong with a record that is left out.
using BadRecordCallback = std::function<void(const Error&)>;

// find_records(), with encode_record() of each. `use` is called on this thread, for one after the
// other as the files have them, whatever the number of threads; so the first thing that is wrong in
// them is what is thrown. Where there is `bad`, it is told of records that cannot be read or
// encoded, and the others are used: Error(data) is thrown for what is no record's fault alone.
void encode_records(std::span<const std::filesystem::path> files, int64_t max_records,
                    const Tokenizer& tokenizer, const ExampleOptions& options, int threads,
                    const EncodedCallback& use, const ProgressCallback& progress = {},
                    const BadRecordCallback& bad = {});

}  // namespace jackscrew
