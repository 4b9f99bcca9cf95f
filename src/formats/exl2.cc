#include "formats/exl2.h"

#include <array>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "formats/shape.h"
#include "quant/packed_source.h"

namespace jackscrew {

namespace {

constexpr std::string_view kExl2Codes = ".q_weight";
constexpr std::string_view kExl2Groups = ".q_groups";
constexpr std::string_view kExl2Order = ".q_invperm";
constexpr std::string_view kExl2OldOrder = ".q_perm";  // in older files, with the same information
constexpr std::string_view kExl2Scales = ".q_scale";
constexpr std::string_view kExl2ScaleMax = ".q_scale_max";
constexpr std::array kExl2Parts = {kExl2Codes,    kExl2Groups, kExl2Order,
                                   kExl2OldOrder, kExl2Scales, kExl2ScaleMax};

// The column at each place of the stored order, given each column's place; empty: in order.
std::vector<int32_t> stored_order(const std::vector<int32_t>& places, const std::string& name) {
  const auto count = static_cast<int32_t>(places.size());
  std::vector<int32_t> columns(places.size(), -1);
  bool in_order = true;
  for (int32_t column = 0; column < count; ++column) {
    const int32_t place = places[static_cast<size_t>(column)];
    if (place < 0 || place >= count || columns[static_cast<size_t>(place)] != -1) {
      fail(ErrorKind::model, "tensor {} is not a permutation of {} columns: {} for column {}", name,
           count, place, column);
    }
    columns[static_cast<size_t>(place)] = column;
    in_order = in_order && place == column;
  }
  if (in_order) columns.clear();
  return columns;
}

struct Group {
  int64_t bits, first_line;
};

// (Columns, bits) of every group. A group ends where the next begins, the last one with the matrix.
std::vector<std::pair<int64_t, int64_t>> group_sizes(const std::vector<Group>& groups, int64_t cols,
                                                     int64_t lines, const std::string& name) {
  std::vector<std::pair<int64_t, int64_t>> out;
  int64_t columns = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto [bits, first] = groups[g];
    const int64_t end = g + 1 < groups.size() ? groups[g + 1].first_line : lines;
    const int64_t size =
        g + 1 < groups.size() && bits > 0 ? (end - first) * kWordBits / bits : cols - columns;
    const bool fits = bits >= 2 && bits <= 8 && bits != 7 && end > first && size > 0 &&
                      columns + size <= cols && ceil_div(size * bits, kWordBits) == end - first;
    if (!fits || (g == 0 && first != 0)) {
      fail(ErrorKind::model, "tensor {}: group {} of {} bits from line {} to {} does not fit", name,
           g, bits, first, end);
    }
    out.emplace_back(size, bits);
    columns += size;
  }
  return out;
}

StoredTensor read_exl2(const LayerTensors& tensors, const QuantizationConfig&) {
  const SafetensorsEntry& codes = tensors.matrix(kExl2Codes, "I32");
  const SafetensorsEntry& order = tensors.get(kExl2Order, "I32");
  const SafetensorsEntry& table = tensors.get(kExl2Groups, "I16");
  if (codes.shape[1] % kExl2PaddedRows != 0 || order.shape.size() != 1 || order.shape[0] < 1 ||
      order.shape[0] > INT32_MAX || table.shape.size() != 1 || table.shape[0] < 2 ||
      table.shape[0] % 2 != 0) {
    fail(ErrorKind::model, "tensor {} of shape {} is not a matrix of EXL2", codes.name,
         shape_text(codes.shape));
  }
  const int64_t lines = codes.shape[0];
  const int64_t rows = codes.shape[1];
  const int64_t cols = order.shape[0];
  const int64_t count = table.shape[0] / 2;
  std::vector<Group> groups;
  const std::vector<uint16_t> pairs = elements_of<uint16_t>(table);
  for (size_t g = 0; g < pairs.size(); g += 2) groups.push_back({pairs[g], pairs[g + 1]});
  std::vector<int32_t> columns = stored_order(elements_of<int32_t>(order), order.name);
  const auto sizes = group_sizes(groups, cols, lines, table.name);
  PackedSource source{
      .name = tensors.name(".weight"),
      .format = "exl2",
      .rows = rows,
      .padding_rows = kExl2PaddedRows - 1,
      .layout = packed_layout(sizes, PackedScale::squared, PackedZero::middle, !columns.empty()),
      .columns = std::move(columns)};
  std::vector<int32_t> group_of_column;
  for (size_t g = 0; g < sizes.size(); ++g) {
    group_of_column.insert(group_of_column.end(), static_cast<size_t>(sizes[g].first),
                           static_cast<int32_t>(g));
  }
  source.codes = [=, layout = source.layout, words = codes.bytes.data()](
                     int64_t begin, int64_t end, int64_t first, int64_t chunk, uint8_t* to) {
    const auto g = static_cast<size_t>(group_of_column[static_cast<size_t>(first)]);
    const uint8_t* of_group = words + groups[g].first_line * rows * 4;
    const int64_t in_group = first - layout.groups[g].first;
    for (int64_t i = 0; i < chunk; ++i) {
      for (int64_t row = begin; row < end; ++row) {
        to[(row - begin) * kPackedChunk + i] =
            static_cast<uint8_t>(bits_at(of_group + row * 4, rows, in_group + i, groups[g].bits));
      }
    }
  };
  const SafetensorsEntry& scales = tensors.get(kExl2Scales, "I32", {count, rows / 8});
  source.scales = [=, words = scales.bytes.data()](int64_t row, uint8_t* to) {
    for (int64_t g = 0; g < count; ++g) {
      to[g] = static_cast<uint8_t>(bits_at(words + g * rows / 8 * 4, 1, row, 4));
    }
  };
  for (const uint16_t bits : elements_of<uint16_t>(tensors.get(kExl2ScaleMax, "F16", {count}))) {
    source.scale_max.push_back(to_f16(to_float(f16{bits}) * 0x1p-8f).bits);
  }
  StoredTensor out = packed_tensor(std::move(source));
  tensors.set_bytes(out, kExl2Codes, {kExl2Groups, kExl2Order, kExl2Scales, kExl2ScaleMax});
  return out;
}

}  // namespace

QuantisedLayout exl2_layout() {
  return {.method = "exl2",
          .help = "EXL2",
          .marker = kExl2Codes,
          .parts = kExl2Parts,
          .needs_no_config = true,
          .read = read_exl2,
          .rounds_tied_head = true};
}

}  // namespace jackscrew
