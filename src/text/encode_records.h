// Records of files as examples, encoded by several threads.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "text/example.h"

namespace jackscrew {

// Takes a record, its example and its place.
using EncodedCallback = std::function<void(const Record&, Example, const std::string& place)>;

// find_records(), with encode_record() of each. `use` is called on this thread, for one after the
// other as the files have them, whatever the number of threads; so the first thing that is wrong in
// them is what is thrown.
void encode_records(std::span<const std::filesystem::path> files, int64_t max_records,
                    const Tokenizer& tokenizer, const ExampleOptions& options, int threads,
                    const EncodedCallback& use, const ProgressCallback& progress = {});

}  // namespace jackscrew
