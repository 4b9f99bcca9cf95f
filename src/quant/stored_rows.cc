#include "quant/stored_rows.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "quant/part_layout.h"

namespace jackscrew {

namespace {

// File bytes are only read by copies; const is given up because a Tensor may be a target too.
Tensor file_tensor(std::span<const uint8_t> bytes) {
  return {const_cast<uint8_t*>(bytes.data()), DType::u8, {static_cast<int64_t>(bytes.size())}};
}

Tensor as_rows(const Tensor& bytes, int64_t row_bytes) {
  return bytes.reshaped({div_exact(bytes.size(), row_bytes), row_bytes});
}

// Copies rows [begin, end) of a tensor whose rows lie one after another, in the model's order.
void copy_rows(Ops& ops, const StoredTensor& stored, int64_t begin, int64_t end, const Tensor& to) {
  if (ops.plans_only()) return;  // a planned tensor has no bytes
  const Tensor from = as_rows(file_tensor(stored.bytes), to.cols());
  if (stored.interleaved_heads == 0) {
    ops.copy(to, from.rows(begin, end));
    return;
  }
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = stored.interleaved_row(row);
    ops.copy(to.rows(row - begin, row - begin + 1), from.rows(at, at + 1));
  }
}

// Copies rows [begin, end) of a computed tensor to out, f32 [end - begin, cols].
void copy_computed(Ops& ops, const StoredTensor& stored, int64_t begin, int64_t end,
                   const Tensor& out) {
  if (ops.plans_only()) return;
  const int64_t step = encode_panel_rows(out.cols());
  for (int64_t at = begin; at < end; at += step) {
    const int64_t last = std::min(end, at + step);
    ops.copy(out.rows(at - begin, last - begin), stored.computed(at, last));
  }
}

bool has_shape_of(const WeightSpec& weight, const StoredTensor& stored) {
  if (weight.is_vector()) return stored.shape == weight.shape();
  return stored.shape.size() == 2 && stored.shape[1] == weight.cols &&
         stored.shape[0] >= weight.rows && stored.shape[0] <= weight.rows + stored.padding_rows;
}

}  // namespace

void check_stored(const WeightSpec& weight, const StoredTensor& stored) {
  if (!has_shape_of(weight, stored)) {
    fail(ErrorKind::model, "tensor {} has shape [{}], the configuration asks for [{}]", weight.name,
         fmt::join(stored.shape, ", "), fmt::join(weight.shape(), ", "));
  }
  // Readers that transcode have checked the sizes of their parts; what is computed has no bytes.
  if (stored.transcode || stored.computed) return;
  auto bytes = static_cast<int64_t>(stored.bytes.size());
  for (const auto part : stored.extra_parts) {
    bytes = round_up(bytes, kPartAlignment) + static_cast<int64_t>(part.size());
  }
  const int64_t expected = stored.format->storage_bytes(weight.rows, weight.cols);
  if (bytes != expected) {
    fail(ErrorKind::model, "tensor {} has {} bytes where {} of {} are expected", weight.name, bytes,
         expected, stored.format->name());
  }
}

bool lies_as_storage(const StoredTensor& stored, int64_t cols) {
  if (stored.computed || stored.transcode || !stored.extra_parts.empty() ||
      stored.owned_bytes != nullptr || stored.interleaved_heads != 0) {
    return false;
  }
  const int64_t row_bytes = stored.format->row_bytes(cols);
  if (row_bytes == 0) return false;
  // Plain rows are read as elements, which must be aligned; blocks are read as bytes.
  const bool plain = row_bytes % cols == 0 && row_bytes / cols > 1;
  const auto element = static_cast<uintptr_t>(plain ? row_bytes / cols : 1);
  return reinterpret_cast<uintptr_t>(stored.bytes.data()) % element == 0;
}

void copy_storage(Ops& ops, const StoredTensor& stored, const Storage& storage) {
  if (stored.computed) {
    const Tensor values(storage.bytes.raw(), DType::f32, {storage.rows, storage.cols});
    copy_computed(ops, stored, 0, storage.rows, values);
    return;
  }
  if (stored.transcode) {
    if (ops.plans_only()) return;
    int64_t written = 0;
    stored.transcode(storage.rows, ops.threads(), [&](std::span<const uint8_t> piece) {
      const auto end = written + static_cast<int64_t>(piece.size());
      ops.copy(storage.bytes.columns(written, end), file_tensor(piece));
      written = end;
    });
    return;
  }
  if (const int64_t row_bytes = stored.format->row_bytes(storage.cols); row_bytes > 0) {
    copy_rows(ops, stored, 0, storage.rows, as_rows(storage.bytes, row_bytes));
    return;
  }
  int64_t at = 0;
  const auto copy = [&](std::span<const uint8_t> part) {
    const auto end = at + static_cast<int64_t>(part.size());
    ops.copy(storage.bytes.columns(at, end), file_tensor(part).columns(0, end - at));
    at = round_up(end, kPartAlignment);
  };
  copy(stored.bytes);
  for (const auto part : stored.extra_parts) copy(part);
}

int64_t StoredRows::bytes_for(const StoredTensor& stored, int64_t rows, int64_t cols) {
  if (stored.computed) return 0;
  const bool by_rows = stored.format->row_bytes(cols) > 0;
  return stored.format->storage_bytes(by_rows ? std::min(rows, encode_panel_rows(cols)) : rows,
                                      cols);
}

StoredRows::StoredRows(Ops& ops, const StoredTensor& stored, int64_t rows, int64_t cols,
                       const Tensor& bytes)
    : ops_(ops), stored_(stored), rows_(rows), cols_(cols), bytes_(bytes) {
  row_bytes_ = stored.format->row_bytes(cols);
  step_ = row_bytes_ > 0 ? std::min(rows, encode_panel_rows(cols)) : rows;
  if (row_bytes_ == 0) copy_storage(ops_, stored_, {bytes_, rows_, cols_});
}

void StoredRows::decode(int64_t begin, int64_t end, const Tensor& out) const {
  if (stored_.computed) return copy_computed(ops_, stored_, begin, end, out);
  if (row_bytes_ == 0) {
    stored_.format->decode(ops_, {bytes_, rows_, cols_}, begin, end, out);
    return;
  }
  for (int64_t at = begin; at < end; at += step_) {
    const int64_t count = std::min(step_, end - at);
    const Tensor part = bytes_.columns(0, count * row_bytes_);
    copy_rows(ops_, stored_, at, at + count, part.reshaped({count, row_bytes_}));
    stored_.format->decode(ops_, {part, count, cols_}, 0, count,
                           out.rows(at - begin, at - begin + count));
  }
}

}  // namespace jackscrew
