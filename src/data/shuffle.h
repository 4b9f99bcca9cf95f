// Seeded permutations.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/philox.h"

namespace jackscrew {

// A permutation of 0 .. size - 1: a pure function of its arguments. `what` names the use, so that
// different uses get different permutations. Throws Error(data) for 2^32 elements or more.
inline std::vector<uint32_t> shuffled_order(int64_t size, uint64_t seed, int64_t epoch,
                                            const char* what) {
  if (size >= int64_t{1} << 32) fail(ErrorKind::data, "{} examples are too many to shuffle", size);
  std::vector<uint32_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), uint32_t{0});
  const RandomStream random = RandomStream::make(seed, RandomPurpose::shuffle,
                                                 static_cast<uint32_t>(epoch), name_hash(what));
  for (uint64_t i = order.size(); i > 1; --i) {
    const uint64_t j = (uint64_t{random.bits(i)} * i) >> 32;
    std::swap(order[i - 1], order[j]);
  }
  return order;
}

}  // namespace jackscrew
