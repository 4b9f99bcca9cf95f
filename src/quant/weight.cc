#include "quant/weight.h"

#include <algorithm>
#include <utility>

#include "quant/plain.h"

namespace jackscrew {

namespace {

// 4 MiB: with four streaming rows of a 256-row GEMM tile it fits the last-level cache of small
// machines; halving or doubling it changes nothing beyond noise at 2048 x 2048.
constexpr int64_t kPanelBytes = int64_t{4} << 20;

}  // namespace

int64_t panel_rows(int64_t cols, int64_t element_bytes) {
  return std::max<int64_t>(32, kPanelBytes / (cols * element_bytes) / 32 * 32);
}

Weight::Weight(Memory& memory, std::string name, int64_t rows, int64_t cols, bool is_vector,
               const Format& format)
    : name_(std::move(name)),
      rows_(rows),
      cols_(cols),
      is_vector_(is_vector),
      format_(&format),
      storage_(memory, Purpose::weights, DType::u8, {rows, format.row_bytes(cols)}) {}

Tensor Weight::as_f32() const {
  if (format_ != &f32_format()) return {};
  return {storage().raw(), DType::f32, {rows_, cols_}};
}

void Weight::decode(Ops& ops, int64_t begin, int64_t end, const Tensor& out) const {
  format_->decode_tile(ops, storage(), {begin, end, 0, cols_}, out);
}

void Weight::multiply(Ops& ops, const Tensor& x, const Tensor& y, Accumulate accumulate) const {
  format_->multiply(ops, storage(), x, y, accumulate);
}

void Weight::gather(Ops& ops, const Tensor& indices, const Tensor& out) const {
  format_->decode_rows(ops, storage(), indices, out);
}

void Weight::publish(Ops& ops, const Tensor& master) {
  format_->encode_rows(ops, master, storage(), 0);
}

void Weight::load(Ops& ops, const StoredTensor& stored, Arena& staging) {
  const bool same_shape = is_vector_ ? stored.shape == std::vector<int64_t>{cols_}
                                     : stored.shape == std::vector<int64_t>{rows_, cols_};
  if (!same_shape) {
    const std::string wanted =
        is_vector_ ? fmt::format("{}", cols_) : fmt::format("{}, {}", rows_, cols_);
    fail(ErrorKind::model, "tensor {} has shape [{}], the configuration asks for [{}]", name_,
         fmt::join(stored.shape, ", "), wanted);
  }
  const Format& from = find_format(stored.format);
  const int64_t row_bytes = from.row_bytes(cols_);
  if (static_cast<int64_t>(stored.bytes.size()) != checked_mul(rows_, row_bytes)) {
    fail(ErrorKind::model, "tensor {} has {} bytes where {} of {} are expected", name_,
         stored.bytes.size(), rows_ * row_bytes, stored.format);
  }
  // File bytes are only read by copies; const is given up because a Tensor may be a target too.
  auto* bytes = const_cast<uint8_t*>(stored.bytes.data());
  const int64_t step = panel_rows(cols_, dtype_size(DType::f32));
  for (int64_t begin = 0; begin < rows_; begin += step) {
    const int64_t end = std::min(rows_, begin + step);
    const Arena::Frame frame(staging);
    const Tensor raw = &from == format_ ? storage().rows(begin, end)
                                        : staging.tensor(DType::u8, {end - begin, row_bytes});
    if (stored.interleaved_heads == 0) {
      ops.copy(raw, Tensor(bytes + begin * row_bytes, DType::u8, {end - begin, row_bytes}));
    } else {
      for (int64_t row = begin; row < end; ++row) {
        ops.copy(
            raw.rows(row - begin, row - begin + 1),
            Tensor(bytes + stored.interleaved_row(row) * row_bytes, DType::u8, {1, row_bytes}));
      }
    }
    if (&from == format_) continue;
    const Tensor values = staging.tensor(DType::f32, {end - begin, cols_});
    from.decode_tile(ops, raw, {0, end - begin, 0, cols_}, values);
    format_->encode_rows(ops, values, storage(), begin);
  }
}

}  // namespace jackscrew
