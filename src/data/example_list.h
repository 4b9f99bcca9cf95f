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

// Throws Error(does_not_fit) where a list of `count` entries of type T, of "examples", say, is more
// than the memory limit leaves.
template <typename T>
void require_memory_for(size_t count, std::string_view of_what) {
  require_memory(static_cast<int64_t>(count * sizeof(T)),
                 fmt::format("a list of {} {}", count, of_what),
                 "max_samples=N reads fewer records");
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
  // A quarter more than there are, not twice: all of it is asked for.
  if (size > list.capacity()) reserve_within_limit(list, size + size / 4, of_what);
  list.insert(list.end(), values.begin(), values.end());
}

template <typename T>
void append_within_limit(std::vector<T>& list, const T& value, std::string_view of_what) {
  append_within_limit(list, std::span<const T>(&value, 1), of_what);
}

}  // namespace jackscrew
