// Lists that are as long as the data are, which may be longer than memory.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/process_memory.h"
#include "base/text.h"

namespace jackscrew {

constexpr const char* kExamples = "examples";  // what most of them are of
constexpr const char* kFewerRecords = "max_samples=N reads fewer records";  // a hint

// Throws Error(does_not_fit) where `capacity` entries, of which a list of `count` has need, are
// more than the memory limit leaves. `root`: see memory_limit().
inline void require_memory_for_list(size_t capacity, size_t entry_bytes, size_t count,
                                    std::string_view of_what, const fs::path& root = "/") {
  require_memory(static_cast<int64_t>(capacity * entry_bytes),
                 fmt::format("a list of {} {}", count, of_what), kFewerRecords, root);
}

// As above, for a list of `count` entries of type T.
template <typename T>
void require_memory_for(size_t count, std::string_view of_what) {
  require_memory_for_list(count, sizeof(T), count, of_what);
}

// For how many entries a list takes memory that must grow to `size`; throws as above. A quarter
// more, not twice as many, since all of it is asked for. Where that does not fit, a 64th more: to
// take none would copy the list for every entry that follows.
inline size_t grown_capacity(size_t size, size_t entry_bytes, std::string_view of_what,
                             const fs::path& root = "/") {
  const size_t quarter = size + size / 4, little = size + size / 64;
  if (fits_in_memory(static_cast<int64_t>(quarter * entry_bytes), root)) return quarter;
  require_memory_for_list(little, entry_bytes, size, of_what, root);
  return little;
}

// Takes memory for `count` entries in all; throws as above.
template <typename T>
void reserve_within_limit(std::vector<T>& list, size_t count, std::string_view of_what) {
  if (count <= list.capacity()) return;
  require_memory_for<T>(count, of_what);
  list.reserve(count);
}

// Appends `values`; throws as above.
template <typename T>
void append_within_limit(std::vector<T>& list, std::span<const T> values,
                         std::string_view of_what) {
  const size_t size = list.size() + values.size();
  if (size > list.capacity()) list.reserve(grown_capacity(size, sizeof(T), of_what));
  list.insert(list.end(), values.begin(), values.end());
}

template <typename T>
void append_within_limit(std::vector<T>& list, const T& value, std::string_view of_what) {
  append_within_limit(list, std::span<const T>(&value, 1), of_what);
}

}  // namespace jackscrew
