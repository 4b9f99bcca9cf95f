// Merges byte pairs within one word.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace jackscrew {

// The initial symbols of a word, before pairs are merged.
struct BpeAlphabet {
  // For whole characters: the token of each code point, -1 or out of range where it has none. Empty
  // in byte-level vocabularies, where every byte is a symbol.
  std::vector<int32_t> character_ids;
  // The token of each byte, -1: none. If there are character_ids, these are for the bytes of
  // characters without a token.
  std::array<int32_t, 256> byte_ids{};
  // Replaces what has no token at all, once per run if `fuse_missing`; -1: dropped.
  int32_t missing_id = -1;
  bool fuse_missing = false;
};

// Immutable once built, and thread-safe.
class BpeMerger {
 public:
  struct Merge {
    int32_t left, right;  // token ids
    int32_t result;       // id of their concatenation
  };

  // What a long word takes while it is merged: bytes of memory for each of its own, at most.
  static constexpr size_t kBytesOfLongWord = 32;

  // Merges are in order of rank, best first; of a duplicate pair the first counts.
  BpeMerger(BpeAlphabet alphabet, const std::vector<Merge>& merges);

  // Appends the ids of `word`: any bytes in byte-level vocabularies, otherwise valid UTF-8. Throws
  // Error(does_not_fit) where the memory limit does not leave enough for a long one.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;
  // Appends the id of one byte that is not part of a valid character.
  void encode_byte(uint8_t byte, std::vector<int32_t>& ids) const;
  // Whether it has a token of its own.
  bool has_byte(uint8_t byte) const { return alphabet_.byte_ids[byte] >= 0; }

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
  size_t first_symbols(std::string_view word, int32_t* symbols) const;
  void merge_short(int32_t* symbols, size_t count, std::vector<int32_t>& ids) const;
  void merge_long(const std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const;

  BpeAlphabet alphabet_;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  int shift_ = 0;
};

}  // namespace jackscrew
