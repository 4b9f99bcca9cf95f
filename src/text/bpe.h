// Byte-pair merging of one word.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace jackscrew {

// Immutable once built: may be used by several threads.
class BpeMerger {
 public:
  struct Merge {
    int32_t left, right;  // token ids
    int32_t result;       // id of their concatenation
  };

  // `byte_ids[b]` is the token of byte b, or -1 where the vocabulary has none. Merges come in order
  // of rank, best first; of a pair that appears twice the first counts.
  // Bytes without a token become `missing_id`, one for each run of them when `fuse_missing`; with
  // missing_id -1 they are dropped.
  BpeMerger(const std::array<int32_t, 256>& byte_ids, const std::vector<Merge>& merges,
            int32_t missing_id, bool fuse_missing);

  // Appends the ids of `word` (raw bytes) to `ids`.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Slot {
    uint64_t pair = 0;
    int32_t rank = -1;
    int32_t result = -1;
  };
  struct Found {
    int32_t rank;  // kNoRank: no such merge
    int32_t result;
  };
  static constexpr int32_t kNoRank = INT32_MAX;

  Found find(int32_t left, int32_t right) const;
  void merge_short(int32_t* symbols, size_t count, std::vector<int32_t>& ids) const;
  void merge_long(const std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  int shift_ = 0;
  int32_t missing_id_;
  bool fuse_missing_;
};

}  // namespace jackscrew
