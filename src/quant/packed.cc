#include "quant/packed.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "quant/packed.rows.h"
#include "quant/part_layout.h"

namespace jackscrew {

namespace {

int64_t cols_of(const PackedLayout& layout) {
  return layout.groups.back().first + layout.groups.back().count;
}

class PackedFormat : public Format {
 public:
  PackedFormat(std::string name, PackedLayout layout)
      : name_(std::move(name)), layout_(std::move(layout)) {}

  const char* name() const override { return name_.c_str(); }

  int64_t storage_bytes(int64_t rows, int64_t cols) const override {
    if (rows <= 0 || cols != cols_of(layout_)) {
      fail(ErrorKind::model, "a matrix [{}, {}] in a layout for rows of {} elements", rows, cols,
           cols_of(layout_));
    }
    return packed_parts(layout_, nullptr, rows).bytes;
  }

  void multiply(Ops& ops, const Storage& storage, const Tensor& x, const Tensor& y,
                Accumulate accumulate, Arena& scratch) const override {
    const Arena::Frame frame(scratch);
    Tensor in_order = x;
    if (layout_.permuted) {
      in_order = scratch.tensor(DType::f32, {1, x.cols()});
      const PackedParts parts = packed_parts(layout_, storage.bytes.raw(), storage.rows);
      ops.launch(PermuteColumns{static_cast<const int32_t*>(parts.columns.raw()), x.data<float>(),
                                in_order.data<float>(), x.cols()},
                 1);
    }
    with_scale([&]<class Scale>(Scale) {
      ops.launch(DotPacked<Scale>{matrix_of<Scale>(storage), in_order.data<float>(),
                                  y.data<float>(), accumulate == Accumulate::yes},
                 y.cols());
    });
  }

  bool for_linears_only() const override { return true; }

 private:
  template <class Body>
  void with_scale(const Body& body) const {
    switch (layout_.scale) {
      case PackedScale::f16:
        return body(F16Scale{});
      case PackedScale::bf16:
        return body(Bf16Scale{});
      case PackedScale::f32:
        return body(F32Scale{});
      case PackedScale::squared:
        return body(SquaredScale{});
    }
  }

  template <class Scale>
  PackedMatrix<Scale> matrix_of(const Storage& storage) const {
    const PackedParts parts = packed_parts(layout_, storage.bytes.raw(), storage.rows);
    return {static_cast<const PackedGroup*>(parts.groups.raw()),
            static_cast<const int32_t*>(parts.columns.raw()),
            parts.codes.data<uint8_t>(),
            parts.scales.raw(),
            static_cast<const f16*>(parts.scale_max.raw()),
            parts.zeros.data<uint8_t>(),
            static_cast<int64_t>(layout_.groups.size()),
            layout_.code_bytes,
            layout_.zero == PackedZero::eight_bits,
            std::all_of(layout_.groups.begin(), layout_.groups.end(),
                        [](const PackedGroup& group) { return group.count % kPackedChunk == 0; })};
  }

  void decode_rows(Ops& ops, const Storage& storage, const Rows& rows,
                   const Tensor& out) const override {
    with_scale([&]<class Scale>(Scale) {
      ops.launch(DecodePacked<Scale>{matrix_of<Scale>(storage), rows.indices, out.raw(), rows.first,
                                     out.row_stride(), out.dtype() == DType::bf16},
                 rows.count);
    });
  }

  std::string name_;
  PackedLayout layout_;
};

// Bytes that `count` codes of a group take.
int64_t packed_code_bytes(int64_t count, int64_t bits) {
  return checked_mul(ceil_div(count, kPackedChunk), 4 * bits);
}

}  // namespace

float value_limit(PackedScale scale) {
  if (scale == PackedScale::f32) return std::numeric_limits<float>::infinity();
  return scale == PackedScale::bf16 ? 0x1p110f : 65520.0f;  // what rounds to an infinite f16
}

std::vector<int64_t> equal_groups(int64_t cols, int64_t size) {
  std::vector<int64_t> sizes(static_cast<size_t>(ceil_div(cols, size)), size);
  sizes.back() = cols - (std::ssize(sizes) - 1) * size;
  return sizes;
}

PackedLayout packed_layout(const std::vector<std::pair<int64_t, int64_t>>& sizes_and_bits,
                           PackedScale scale, PackedZero zero, bool permuted) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  PackedLayout layout;
  layout.scale = scale;
  layout.zero = zero;
  layout.permuted = permuted;
  int64_t first = 0;
  for (const auto& [count, bits] : sizes_and_bits) {
    if (bits != 8 && (bits < 2 || bits > 6)) {
      throw Error(ErrorKind::model, fmt::format("a group of codes of {} bits", bits),
                  "read are codes of 2, 3, 4, 5, 6 and 8 bits");
    }
    if (count <= 0 || count > kMost - first || layout.code_bytes > kMost) {
      fail(ErrorKind::model, "a group of {} columns behind {}", count, first);
    }
    layout.groups.push_back({static_cast<int32_t>(first), static_cast<int32_t>(count),
                             static_cast<int32_t>(bits), static_cast<int32_t>(layout.code_bytes)});
    first += count;
    layout.code_bytes += packed_code_bytes(count, bits);
  }
  if (layout.groups.empty()) fail(ErrorKind::model, "a matrix without a group of codes");
  return layout;
}

PackedLayout packed_layout(const std::vector<int64_t>& sizes, int64_t bits, PackedScale scale,
                           PackedZero zero, bool permuted) {
  std::vector<std::pair<int64_t, int64_t>> groups;
  groups.reserve(sizes.size());
  for (const int64_t size : sizes) groups.emplace_back(size, bits);
  return packed_layout(groups, scale, zero, permuted);
}

FormatPointer make_packed_format(std::string name, PackedLayout layout) {
  return std::make_shared<const PackedFormat>(std::move(name), std::move(layout));
}

PackedParts packed_parts(const PackedLayout& layout, void* base, int64_t rows) {
  const auto groups = static_cast<int64_t>(layout.groups.size());
  PartLayout parts(base);
  PackedParts out{};
  const auto take = [&](bool present, int64_t bytes) {
    return present ? parts.tensor<uint8_t>(bytes) : Tensor(nullptr, DType::u8, {0});
  };
  const bool squared = layout.scale == PackedScale::squared;
  const int64_t in_nibbles = ceil_div(groups, 2);
  out.groups = take(true, groups * static_cast<int64_t>(sizeof(PackedGroup)));
  out.columns = take(layout.permuted, cols_of(layout) * static_cast<int64_t>(sizeof(int32_t)));
  out.codes = take(true, checked_mul(rows, layout.code_bytes));
  const int64_t of_row = squared ? in_nibbles : groups * (layout.scale == PackedScale::f32 ? 4 : 2);
  out.scales = take(true, checked_mul(rows, of_row));
  out.scale_max = take(squared, groups * 2);
  out.zeros = take(layout.zero != PackedZero::middle,
                   checked_mul(rows, layout.zero == PackedZero::four_bits ? in_nibbles : groups));
  out.bytes = parts.bytes();
  return out;
}

void pack_codes(const uint8_t* codes, int64_t count, int64_t bits, uint8_t* to) {
  if (bits == 8) {
    std::memset(to, 0, kPackedChunk);
    std::copy_n(codes, count, to);
    return;
  }
  std::memset(to, 0, static_cast<size_t>(4 * bits));
  int place = 0;
  for (const int plane : {4, 2, 1}) {
    if ((bits & plane) == 0) continue;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t bit = i * plane;
      const int value = codes[i] >> place & ((1 << plane) - 1);
      to[bit / 8] = static_cast<uint8_t>(to[bit / 8] | value << (bit % 8));
    }
    to += 4 * plane;
    place += plane;
  }
}

}  // namespace jackscrew
