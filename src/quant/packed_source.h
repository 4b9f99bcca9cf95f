// Brings numbers that were quantised elsewhere into a packed storage format (packed.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "quant/packed.h"
#include "quant/stored_tensor.h"

namespace jackscrew {

// A weight [rows, cols] as a reader of a file sees it. What the functions read must live as long as
// the model's files are open.
struct PackedSource {
  std::string name;    // of the weight, for messages
  std::string format;  // what inspect shows
  int64_t rows;
  int64_t padding_rows = 0;  // how many of them the model may not have
  PackedLayout layout;
  // The matrix' column that each stored column is; empty: in order.
  std::vector<int32_t> columns = {};
  // Codes of stored columns [first, first + count), at most 32 of one group, of rows [begin, end):
  // to u8 [end - begin, 32]. Several threads ask at once.
  std::function<void(int64_t begin, int64_t end, int64_t first, int64_t count, uint8_t* codes)>
      codes = {};
  // The scales of a row, one for each group, in the type of PackedScale; squared: codes, u8.
  std::function<void(int64_t row, uint8_t* scales)> scales = {};
  // The zeros of a row, u8, one for each group; empty with PackedZero::middle.
  std::function<void(int64_t row, uint8_t* zeros)> zeros = {};
  std::vector<uint16_t> scale_max = {};  // f16 [groups], with squared scales
};

// The tensor without its file's bytes, which the caller adds. Scales are checked on the way: one
// that is not finite, or that takes a value beyond f16's largest, is Error(model) of transcode().
StoredTensor packed_tensor(PackedSource source);

// Number `index` of a stream of `bits` bits each, the lowest first, in little-endian words that
// stand `stride` words apart.
uint32_t bits_at(const uint8_t* words, int64_t stride, int64_t index, int64_t bits);

// The order in which columns of the same group stand together, in rising order within one, and the
// sizes of the groups. Throws Error(model) where an index is not in [0, groups) or a group is
// empty.
struct GroupOrder {
  std::vector<int32_t> columns;  // empty: the columns' own
  std::vector<int64_t> sizes;
};
GroupOrder order_by_group(const std::vector<int32_t>& group_of_column, int64_t groups,
                          const std::string& name);

}  // namespace jackscrew
