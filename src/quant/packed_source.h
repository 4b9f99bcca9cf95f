// Converts weights that other programs have quantised to a packed storage format (packed.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "quant/packed.h"
#include "quant/stored_tensor.h"

namespace jackscrew {

// A weight [rows, cols] as the reader of a file provides it. What the functions read must live as
// long as the model's files are open.
struct PackedSource {
  std::string name;    // of the weight, for messages
  std::string format;  // what inspect shows
  int64_t rows;
  int64_t padding_rows = 0;  // how many of them may be padding that the model does not have
  PackedLayout layout;
  // The column of the matrix that each stored column is; empty: in order.
  std::vector<int32_t> columns = {};
  // Writes the codes of rows [begin, end) and stored columns [first, first + count), at most 32 and
  // all of one group, to u8 [end - begin, kPackedChunk]. Several threads call it at once.
  std::function<void(int64_t begin, int64_t end, int64_t first, int64_t count, uint8_t* codes)>
      codes = {};
  // Writes the scales of a row, one for each group, in the type of layout.scale; if squared, as u8
  // codes.
  std::function<void(int64_t row, uint8_t* scales)> scales = {};
  // Writes the zeros of a row, u8, one for each group; empty with PackedZero::middle.
  std::function<void(int64_t row, uint8_t* zeros)> zeros = {};
  std::vector<uint16_t> scale_max = {};  // f16 [groups], with squared scales
};

// The tensor without its file's bytes, which the caller adds. Scales are checked on the way: one
// that does not pass has_finite_values() with the zero of its row is Error(model) of transcode().
StoredTensor packed_tensor(PackedSource source);

// Whether scale * (code - zero) is below value_limit() for every code of `bits` bits. Writers ask,
// too, so that they write no file that readers refuse.
bool has_finite_values(PackedScale type, float scale, int64_t bits, int64_t zero);

// Scale `index` of scales in any type but `squared`, which need not be aligned.
float scale_at(PackedScale type, const uint8_t* scales, size_t index);

// Quantised files keep codes in little-endian words of so many bits.
inline constexpr int64_t kWordBits = 32;
// Returns number `index` of a stream of numbers of `bits` bits, the lowest bits first, in such
// words that lie `stride` words apart.
uint32_t bits_at(const uint8_t* words, int64_t stride, int64_t index, int64_t bits);

// The stored order of columns, with those of a group together and ascending, and the sizes of the
// groups. Throws Error(model) where an index is not in [0, groups) or a group is empty.
struct GroupOrder {
  std::vector<int32_t> columns;  // as PackedSource::columns
  std::vector<int64_t> sizes;
};
GroupOrder order_by_group(const std::vector<int32_t>& group_of_column, int64_t groups,
                          const std::string& name);

}  // namespace jackscrew
