#include "quant/weight.h"

#include <algorithm>
#include <utility>

#include "quant/plain.h"

namespace jackscrew {

namespace {

// Where the bytes of a file begin in the storage of several parts.
constexpr int64_t kPartAlignment = 64;

// File bytes are only read by copies; const is given up because a Tensor may be a target too.
Tensor file_tensor(std::span<const uint8_t> bytes) {
  return {const_cast<uint8_t*>(bytes.data()), DType::u8, {static_cast<int64_t>(bytes.size())}};
}

Tensor as_rows(const Tensor& bytes, int64_t row_bytes) {
  return bytes.reshaped({div_exact(bytes.size(), row_bytes), row_bytes});
}

// Rows [begin, end) of a tensor whose rows lie one after another, in the model's order.
void copy_rows(Ops& ops, const StoredTensor& stored, int64_t begin, int64_t end, const Tensor& to) {
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

// The whole of a tensor, as it is.
void copy_storage(Ops& ops, const StoredTensor& stored, const Format& format,
                  const Storage& storage) {
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
  if (const int64_t row_bytes = format.row_bytes(storage.cols); row_bytes > 0) {
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
  for (const auto part : stored.more) copy(part);
}

// The values of a stored tensor, through staging memory that it holds as long as it lives.
class StoredRows {
 public:
  StoredRows(Ops& ops, const StoredTensor& stored, const Format& format, int64_t rows, int64_t cols,
             Arena& staging)
      : ops_(ops), stored_(stored), format_(format), rows_(rows), cols_(cols) {
    row_bytes_ = format.row_bytes(cols);
    step_ = row_bytes_ > 0 ? std::min(rows, encode_panel_rows(cols)) : rows;
    bytes_ = staging.tensor(DType::u8, {format.storage_bytes(step_, cols)});
    if (row_bytes_ == 0) copy_storage(ops_, stored_, format_, {bytes_, rows_, cols_});
  }

  // Rows [begin, end) to out, f32 [end - begin, cols].
  void decode(int64_t begin, int64_t end, const Tensor& out) const {
    if (row_bytes_ == 0) {
      format_.decode(ops_, {bytes_, rows_, cols_}, begin, end, out);
      return;
    }
    for (int64_t at = begin; at < end; at += step_) {
      const int64_t count = std::min(step_, end - at);
      const Tensor part = bytes_.columns(0, count * row_bytes_);
      copy_rows(ops_, stored_, at, at + count, part.reshaped({count, row_bytes_}));
      format_.decode(ops_, {part, count, cols_}, 0, count,
                     out.rows(at - begin, at - begin + count));
    }
  }

 private:
  Ops& ops_;
  const StoredTensor& stored_;
  const Format& format_;
  int64_t rows_, cols_;
  int64_t row_bytes_;  // 0: the rows do not lie one after another, and all of them are in bytes_
  int64_t step_;       // rows that bytes_ holds
  Tensor bytes_;
};

}  // namespace

Weight::Weight(Memory& memory, WeightSpec spec, FormatPointer format)
    : spec_(std::move(spec)),
      format_(std::move(format)),
      memory_(&memory),
      storage_(memory, Purpose::weights, DType::u8, {format_->storage_bytes(rows(), cols())}) {}

Weight::Weight(Memory& memory, WeightSpec spec, const Format& format)
    : Weight(memory, std::move(spec), lasting(format)) {}

const Format& Weight::format() const {
  return taken_out_.empty() ? *format_ : f32_format();
}

Storage Weight::storage() const {
  if (taken_out_.empty()) return {storage_.view(), rows(), cols()};
  return {Tensor(taken_out_.raw(), DType::u8, {taken_out_.bytes()}), rows(), cols()};
}

Tensor Weight::as_f32() const {
  if (&format() != &f32_format()) return {};
  return {storage().bytes.raw(), DType::f32, {rows(), cols()}};
}

Int8Rows Weight::as_int8_rows() const {
  return format().int8_rows(storage());
}

void Weight::decode(Ops& ops, int64_t begin, int64_t end, const Tensor& out) const {
  format().decode(ops, storage(), begin, end, out);
}

void Weight::multiply(Ops& ops, const Tensor& x, const Tensor& y, Accumulate accumulate,
                      Arena& scratch) const {
  format().multiply(ops, storage(), x, y, accumulate, scratch);
}

void Weight::gather(Ops& ops, const Tensor& indices, const Tensor& out) const {
  format().gather(ops, storage(), indices, out);
}

void Weight::publish(Ops& ops, const Tensor& master, const Rounding& rounding, Arena& scratch) {
  encode(
      ops, [&](int64_t begin, int64_t end) { return master.rows(begin, end); }, rounding, scratch);
}

void Weight::encode(Ops& ops, const RowSource& source, const Rounding& rounding, Arena& scratch) {
  format_->encode(ops, source, storage(), rounding, scratch);
}

void Weight::release_storage() {
  storage_ = {};
}

void Weight::take_out(const Tensor& values) {
  taken_out_ = values;
}

void Weight::put_back(Ops& ops, const Rounding& rounding, Arena& scratch) {
  const Tensor values = std::exchange(taken_out_, Tensor());
  storage_ =
      OwnedTensor(*memory_, Purpose::weights, DType::u8, {format_->storage_bytes(rows(), cols())});
  publish(ops, values, rounding, scratch);
}

bool Weight::has_shape_of(const StoredTensor& stored) const {
  if (is_vector()) return stored.shape == std::vector<int64_t>{cols()};
  return stored.shape.size() == 2 && stored.shape[1] == cols() && stored.shape[0] >= rows() &&
         stored.shape[0] <= rows() + stored.padding_rows;
}

const Format& Weight::check(const StoredTensor& stored) const {
  if (!has_shape_of(stored)) {
    const std::string wanted =
        is_vector() ? fmt::format("{}", cols()) : fmt::format("{}, {}", rows(), cols());
    fail(ErrorKind::model, "tensor {} has shape [{}], the configuration asks for [{}]", name(),
         fmt::join(stored.shape, ", "), wanted);
  }
  const Format& format = *stored.format;
  if (stored.transcode) return format;  // by a reader that has compared the sizes of its parts
  auto bytes = static_cast<int64_t>(stored.bytes.size());
  for (const auto part : stored.more) {
    bytes = round_up(bytes, kPartAlignment) + static_cast<int64_t>(part.size());
  }
  const int64_t expected = format.storage_bytes(rows(), cols());
  if (bytes != expected) {
    fail(ErrorKind::model, "tensor {} has {} bytes where {} of {} are expected", name(), bytes,
         expected, format.name());
  }
  return format;
}

void Weight::load(Ops& ops, const StoredTensor& stored, Arena& staging) {
  const Format& from = check(stored);
  if (&from == format_.get()) {
    copy_storage(ops, stored, from, storage());
    return;
  }
  const Arena::Frame frame(staging);
  const StoredRows file_rows(ops, stored, from, rows(), cols(), staging);
  const Tensor panel =
      staging.tensor(DType::f32, {std::min(rows(), encode_panel_rows(cols())), cols()});
  const auto source = [&](int64_t begin, int64_t end) {
    const Tensor part = panel.rows(0, end - begin);
    file_rows.decode(begin, end, part);
    return part;
  };
  format_->encode(ops, source, storage(), {}, staging);
}

void Weight::read_original(Ops& ops, const StoredTensor& stored, const Tensor& out,
                           Arena& staging) const {
  const Arena::Frame frame(staging);
  StoredRows(ops, stored, check(stored), rows(), cols(), staging).decode(0, rows(), out);
}

}  // namespace jackscrew
