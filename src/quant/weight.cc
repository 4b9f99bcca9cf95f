#include "quant/weight.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

#include "quant/plain.h"

namespace jackscrew {

namespace {

// An error of the format's with the weight's name.
int64_t storage_bytes(const Format& format, const WeightSpec& spec) {
  try {
    return format.storage_bytes(spec.rows, spec.cols);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", spec.name, error.what()), error.hint());
  }
}

}  // namespace

Weight::Weight(Memory& memory, WeightSpec spec, FormatPointer format)
    : spec_(std::move(spec)),
      format_(std::move(format)),
      memory_(&memory),
      storage_(memory, Purpose::weights, DType::u8, {storage_bytes(*format_, spec_)}) {}

Weight::Weight(Memory& memory, WeightSpec spec, const Format& format)
    : Weight(memory, std::move(spec), unowned(format)) {}

Weight::Weight(WeightSpec spec, FormatPointer format, const Tensor& mapped)
    : spec_(std::move(spec)), format_(std::move(format)), memory_(nullptr), mapped_(mapped) {}

const Format& Weight::format() const {
  return taken_out_.empty() ? *format_ : f32_format();
}

Storage Weight::storage() const {
  if (is_mapped()) return {mapped_, rows(), cols()};
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

Int4Rows Weight::as_int4_rows() const {
  return format().int4_rows(storage());
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
  if (is_mapped()) fail(ErrorKind::generic, "{} is in a file and cannot be written", name());
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

void Weight::load(Ops& ops, const StoredTensor& stored, Arena& staging) {
  check_stored(spec_, stored);
  if (stored.format == format_) return copy_storage(ops, stored, storage());
  const Arena::Frame frame(staging);
  const StoredRows file_rows = stored_rows(ops, stored, staging);
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
  check_stored(spec_, stored);
  const Arena::Frame frame(staging);
  stored_rows(ops, stored, staging).decode(0, rows(), out);
}

StoredRows Weight::stored_rows(Ops& ops, const StoredTensor& stored, Arena& staging) const {
  const int64_t bytes = StoredRows::bytes_for(stored, rows(), cols());
  return {ops, stored, rows(), cols(), staging.tensor(DType::u8, {bytes})};
}

}  // namespace jackscrew
