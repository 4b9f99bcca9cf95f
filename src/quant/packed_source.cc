#include "quant/packed_source.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "base/half.h"
#include "base/parallel.h"
#include "quant/part_layout.h"

namespace jackscrew {

namespace {

// Passes parts to the sink, each padded to begin at the next multiple of kPartAlignment.
class PartWriter {
 public:
  explicit PartWriter(const StorageSink& sink) : sink_(sink) {}

  void begin_part() {
    constexpr std::array<uint8_t, kPartAlignment> kNothing = {};
    const size_t over = written_ % kNothing.size();
    if (over != 0) write({kNothing.data(), kNothing.size() - over});
  }
  void write(std::span<const uint8_t> bytes) {
    sink_(bytes);
    written_ += bytes.size();
  }
  template <class Element>
  void write_part(const std::vector<Element>& elements) {
    if (elements.empty()) return;
    begin_part();
    write({reinterpret_cast<const uint8_t*>(elements.data()), elements.size() * sizeof(Element)});
  }

 private:
  const StorageSink& sink_;
  size_t written_ = 0;
};

template <class Element>
float element_at(const uint8_t* bytes, size_t index) {
  Element element;
  std::memcpy(&element, bytes + index * sizeof element, sizeof element);
  return to_float(element);
}

// Refuses a scale that takes a code beside that zero to no finite value.
void check_scale(const PackedSource& source, float scale, int64_t bits, int64_t zero, int64_t row) {
  if (has_finite_values(source.layout.scale, scale, bits, zero)) return;
  fail(ErrorKind::model, "{}: a scale of row {} is {}: its values are not finite", source.name, row,
       scale);
}

// The zeros of a row, one for each group.
void read_zeros(const PackedSource& source, int64_t row, std::vector<uint8_t>& zeros) {
  if (source.layout.zero != PackedZero::middle) return source.zeros(row, zeros.data());
  for (size_t g = 0; g < zeros.size(); ++g) {
    zeros[g] = static_cast<uint8_t>(1 << (source.layout.groups[g].bits - 1));
  }
}

// Two to a byte.
void put_nibbles_low_first(const std::vector<uint8_t>& values, uint8_t* to) {
  for (size_t i = 0; i < values.size(); i += 2) {
    const int high = i + 1 < values.size() ? values[i + 1] & 15 : 0;
    to[i / 2] = static_cast<uint8_t>((values[i] & 15) | high << 4);
  }
}

// Writes a part of `row_bytes` per row in panels; fill(row, bytes) fills the bytes of a row.
template <class Fill>
void write_rows(PartWriter& writer, int64_t rows, int64_t row_bytes, const Fill& fill) {
  writer.begin_part();
  const int64_t step = std::clamp<int64_t>(kPanelBytes / row_bytes, 1, rows);
  std::vector<uint8_t> panel(static_cast<size_t>(step * row_bytes));
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(rows, begin + step);
    for (int64_t row = begin; row < end; ++row) fill(row, panel.data() + (row - begin) * row_bytes);
    writer.write({panel.data(), static_cast<size_t>((end - begin) * row_bytes)});
  }
}

void write_codes(const PackedSource& source, int64_t rows, int threads, PartWriter& writer) {
  // Rows of a task. Their words lie side by side in files and fill some cache lines.
  constexpr int64_t kTaskRows = 64;
  writer.begin_part();
  const int64_t row_bytes = source.layout.code_bytes;
  const int64_t step = std::clamp<int64_t>(kPanelBytes / row_bytes, 1, rows);
  std::vector<uint8_t> panel(static_cast<size_t>(step * row_bytes));
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(rows, begin + step);
    parallel_for(threads, ceil_div(end - begin, kTaskRows), [&](int64_t task, int) {
      const int64_t first = begin + task * kTaskRows;
      const int64_t last = std::min(end, first + kTaskRows);
      std::array<uint8_t, kTaskRows * kPackedChunk> codes;
      for (const PackedGroup& group : source.layout.groups) {
        int64_t offset = group.offset;
        for (int64_t done = 0; done < group.count; done += kPackedChunk) {
          const int64_t count = std::min(kPackedChunk, group.count - done);
          source.codes(first, last, group.first + done, count, codes.data());
          for (int64_t row = first; row < last; ++row) {
            pack_codes(codes.data() + (row - first) * kPackedChunk, count, group.bits,
                       panel.data() + (row - begin) * row_bytes + offset);
          }
          offset += 4 * group.bits;
        }
      }
    });
    writer.write({panel.data(), static_cast<size_t>((end - begin) * row_bytes)});
  }
}

void write_scales(const PackedSource& source, int64_t rows, PartWriter& writer) {
  const std::vector<PackedGroup>& groups = source.layout.groups;
  const PackedScale type = source.layout.scale;
  const bool is_squared = type == PackedScale::squared;
  const size_t row_bytes =
      is_squared ? (groups.size() + 1) / 2
                 : groups.size() * (type == PackedScale::f32 ? sizeof(float) : sizeof(f16));
  std::vector<uint8_t> codes(groups.size()), zeros(groups.size());
  // As decoders compute it.
  const auto squared = [&](size_t g) {
    const auto root = static_cast<float>(codes[g] + 1);
    return to_float(to_f16(root * root * to_float(f16{source.scale_max[g]})));
  };
  write_rows(writer, rows, static_cast<int64_t>(row_bytes), [&](int64_t row, uint8_t* to) {
    source.scales(row, is_squared ? codes.data() : to);
    if (is_squared) put_nibbles_low_first(codes, to);
    read_zeros(source, row, zeros);
    for (size_t g = 0; g < groups.size(); ++g) {
      check_scale(source, is_squared ? squared(g) : scale_at(type, to, g), groups[g].bits, zeros[g],
                  row);
    }
  });
  if (is_squared) writer.write_part(source.scale_max);
}

void write_zeros(const PackedSource& source, int64_t rows, PartWriter& writer) {
  const size_t groups = source.layout.groups.size();
  if (source.layout.zero == PackedZero::eight_bits) {
    write_rows(writer, rows, static_cast<int64_t>(groups), source.zeros);
  } else if (source.layout.zero == PackedZero::four_bits) {
    std::vector<uint8_t> zeros(groups);
    write_rows(writer, rows, static_cast<int64_t>((groups + 1) / 2), [&](int64_t row, uint8_t* to) {
      source.zeros(row, zeros.data());
      put_nibbles_low_first(zeros, to);
    });
  }
}

}  // namespace

bool has_finite_values(PackedScale type, float scale, int64_t bits, int64_t zero) {
  const int64_t last = (int64_t{1} << bits) - 1;
  const auto farthest = static_cast<float>(std::max(zero, last - zero));
  return std::abs(scale) * farthest < value_limit(type);  // false for a NaN, too
}

float scale_at(PackedScale type, const uint8_t* scales, size_t index) {
  if (type == PackedScale::f32) return element_at<float>(scales, index);
  return type == PackedScale::bf16 ? element_at<bf16>(scales, index)
                                   : element_at<f16>(scales, index);
}

StoredTensor packed_tensor(PackedSource source) {
  StoredTensor out;
  out.name = source.name;
  out.format = make_packed_format(source.format, source.layout);
  out.padding_rows = source.padding_rows;
  out.shape = {source.rows, source.layout.groups.back().first + source.layout.groups.back().count};
  out.transcode = [shared = std::make_shared<const PackedSource>(std::move(source))](
                      int64_t rows, int threads, const StorageSink& sink) {
    PartWriter writer(sink);
    writer.write_part(shared->layout.groups);
    writer.write_part(shared->columns);
    write_codes(*shared, rows, threads, writer);
    write_scales(*shared, rows, writer);
    write_zeros(*shared, rows, writer);
  };
  return out;
}

uint32_t bits_at(const uint8_t* words, int64_t stride, int64_t index, int64_t bits) {
  const int64_t bit = index * bits;
  const auto word = [&](int64_t at) {
    uint32_t value;
    std::memcpy(&value, words + at * stride * 4, sizeof value);
    return value;
  };
  const int64_t first = bit / kWordBits;
  const int64_t shift = bit % kWordBits;
  uint64_t both = word(first);
  if (shift + bits > kWordBits) both |= static_cast<uint64_t>(word(first + 1)) << kWordBits;
  return static_cast<uint32_t>(both >> shift) & ((1u << bits) - 1u);
}

GroupOrder order_by_group(const std::vector<int32_t>& group_of_column, int64_t groups,
                          const std::string& name) {
  GroupOrder order;
  order.sizes.assign(static_cast<size_t>(groups), 0);
  for (const int32_t group : group_of_column) {
    if (group < 0 || group >= groups) {
      fail(ErrorKind::model, "{}: group {} of a column is not one of {}", name, group, groups);
    }
    ++order.sizes[static_cast<size_t>(group)];
  }
  for (size_t g = 0; g < order.sizes.size(); ++g) {
    if (order.sizes[g] == 0) fail(ErrorKind::model, "{}: group {} has no columns", name, g);
  }
  if (std::is_sorted(group_of_column.begin(), group_of_column.end())) return order;
  order.columns.resize(group_of_column.size());
  std::iota(order.columns.begin(), order.columns.end(), 0);
  std::stable_sort(order.columns.begin(), order.columns.end(), [&](int32_t a, int32_t b) {
    return group_of_column[static_cast<size_t>(a)] < group_of_column[static_cast<size_t>(b)];
  });
  return order;
}

}  // namespace jackscrew
