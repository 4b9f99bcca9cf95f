#include "text/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <queue>

#include "base/checked.h"
#include "base/process_memory.h"
#include "text/utf8.h"

namespace jackscrew {

namespace {

// Up to this many symbols, scanning for the best pair beats a priority queue.
constexpr size_t kShortWord = 48;

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

// Throws where a memory limit does not leave what a word of so many characters needs.
void require_memory_for_word(size_t characters, size_t bytes_of_each) {
  const auto bytes = static_cast<int64_t>(characters * bytes_of_each);
  if (fits_in_memory(bytes)) return;  // so that most words are not named in vain
  require_memory(bytes, fmt::format("a word of {} characters", characters),
                 "text takes less where words and runs of spaces are shorter");
}

}  // namespace

BpeMerger::BpeMerger(BpeAlphabet alphabet, const std::vector<Merge>& merges)
    : alphabet_(std::move(alphabet)) {
  slots_.resize(std::bit_ceil(std::max<size_t>(16, merges.size() * 2)));
  shift_ = 64 - std::countr_zero(slots_.size());
  int32_t rank = 0;
  for (const Merge& merge : merges) {
    const uint64_t key = pair_key(merge.left, merge.right);
    size_t at = static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
    while (slots_[at].rank >= 0 && slots_[at].pair != key) at = (at + 1) & (slots_.size() - 1);
    if (slots_[at].rank < 0) slots_[at] = Slot{key, rank, merge.result};
    ++rank;
  }
}

BpeMerger::Found BpeMerger::find(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  size_t at = static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
  while (slots_[at].rank >= 0) {
    if (slots_[at].pair == key) return {slots_[at].rank, slots_[at].result};
    at = (at + 1) & (slots_.size() - 1);
  }
  return {kNoRank, -1};
}

void BpeMerger::encode(std::string_view word, std::vector<int32_t>& ids) const {
  std::array<int32_t, kShortWord> few;
  std::vector<int32_t> many;
  if (word.size() > kShortWord) {
    require_memory_for_word(word.size(), sizeof(int32_t));
    many.resize(word.size());
  }
  int32_t* symbols = word.size() > kShortWord ? many.data() : few.data();
  const size_t count = first_symbols(word, symbols);
  if (count <= kShortWord) {
    merge_short(symbols, count, ids);
  } else {
    many.resize(count);
    merge_long(many, ids);
  }
}

void BpeMerger::encode_byte(uint8_t byte, std::vector<int32_t>& ids) const {
  const int32_t id = alphabet_.byte_ids[byte];
  if (id >= 0) {
    ids.push_back(id);
  } else if (alphabet_.missing_id >= 0) {
    ids.push_back(alphabet_.missing_id);
  }
}

// Splits a word into its initial symbols: writes at most word.size() of them, returns how many.
size_t BpeMerger::first_symbols(std::string_view word, int32_t* symbols) const {
  const std::vector<int32_t>& characters = alphabet_.character_ids;
  size_t count = 0;
  bool after_missing = false;
  for (size_t i = 0, length = 1; i < word.size(); i += length) {
    int32_t id = -1;
    if (characters.empty()) {
      id = alphabet_.byte_ids[static_cast<uint8_t>(word[i])];
    } else {
      length = utf8_length(word[i]);
      const size_t character = utf8_character(word, i);
      if (character < characters.size()) id = characters[character];
      if (id < 0 && alphabet_.byte_ids[0] >= 0) {  // then every byte has one
        for (size_t byte = i; byte < i + length; ++byte) {
          symbols[count++] = alphabet_.byte_ids[static_cast<uint8_t>(word[byte])];
        }
        after_missing = false;
        continue;
      }
    }
    if (id >= 0) {
      symbols[count++] = id;
    } else if (alphabet_.missing_id >= 0 && !(after_missing && alphabet_.fuse_missing)) {
      symbols[count++] = alphabet_.missing_id;
    }
    after_missing = id < 0;
  }
  return count;
}

void BpeMerger::merge_short(int32_t* symbols, size_t count, std::vector<int32_t>& ids) const {
  std::array<Found, kShortWord> pairs;  // pairs[i]: the merge of symbols i and i + 1
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoRank) break;
    symbols[best] = pairs[best].result;
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    std::copy(pairs.data() + best + 1, pairs.data() + count - 1, pairs.data() + best);
    --count;
    if (best > 0) pairs[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = find(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols, symbols + count);
}

void BpeMerger::merge_long(const std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const {
  // Small, since a long word has millions of them.
  using Place = uint32_t;
  struct Node {
    int32_t id;  // -1: merged into the node before it
    Place previous, next;
  };
  struct Candidate {
    int32_t rank;  // of the pair when it was found; stale if another pair is there now
    Place at;
    bool operator<(const Candidate& other) const {  // the queue's top is its largest
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  constexpr Place kNone = UINT32_MAX;
  // The queue has fewer than twice as many candidates as there are symbols: a merge takes one away
  // and adds two at most.
  constexpr size_t kOfSymbol = sizeof(Node) + 2 * sizeof(Candidate);
  static_assert(sizeof(int32_t) + kOfSymbol == kBytesOfLongWord);
  require_memory_for_word(symbols.size(), kOfSymbol);
  const auto size = narrow<Place>(symbols.size());
  std::vector<Node> nodes(symbols.size());
  for (Place i = 0; i < size; ++i) {
    nodes[i] = {symbols[i], i == 0 ? kNone : i - 1, i + 1 == size ? kNone : i + 1};
  }
  const auto merge_at = [&](Place at) {
    if (at == kNone || nodes[at].next == kNone) return Found{kNoRank, -1};
    return find(nodes[at].id, nodes[nodes[at].next].id);
  };
  std::vector<Candidate> found;
  found.reserve(symbols.size());
  for (Place i = 0; i < size; ++i) {
    if (const Found merge = merge_at(i); merge.rank != kNoRank) found.push_back({merge.rank, i});
  }
  std::priority_queue<Candidate> queue({}, std::move(found));
  const auto consider = [&](Place at) {
    if (const Found merge = merge_at(at); merge.rank != kNoRank) queue.push({merge.rank, at});
  };
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const Found merge = merge_at(best.at);
    if (merge.rank != best.rank) continue;
    Node& node = nodes[best.at];
    Node& absorbed = nodes[node.next];
    node.id = merge.result;
    node.next = absorbed.next;
    absorbed.id = -1;
    if (node.next != kNone) nodes[node.next].previous = best.at;
    consider(node.previous);
    consider(best.at);
  }
  for (Place i = 0; i != kNone; i = nodes[i].next) ids.push_back(nodes[i].id);
}

}  // namespace jackscrew
