// Finds and parses records, for tests of their readers.
#pragma once

#include "data/records.h"

namespace jackscrew {

// Returns false if no more are wanted.
using RecordCallback = std::function<bool(const Record&, const std::string& place)>;

inline void read_records(std::span<const std::filesystem::path> files, int64_t max_records,
                         const RecordCallback& use, const ProgressCallback& progress = {},
                         const RecordFields& fields = {}) {
  find_records(
      files, max_records,
      [&](const FoundRecord& found) { return use(found.parse(fields).record, found.place); },
      progress);
}

}  // namespace jackscrew
