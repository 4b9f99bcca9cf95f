#include "quant/format.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "quant/gguf_formats.h"
#include "quant/int4_hadamard.h"
#include "quant/int8.h"
#include "quant/int8_absmax.h"
#include "quant/int8_affine.h"
#include "quant/int8_dynamic.h"
#include "quant/nf4.h"
#include "quant/plain.h"

namespace jackscrew {

int64_t panel_rows(int64_t cols, int64_t element_bytes, int64_t panel_bytes) {
  return std::max<int64_t>(32, panel_bytes / (cols * element_bytes) / 32 * 32);
}

int64_t encode_panel_rows(int64_t cols) {
  constexpr int64_t kGrain = 256;
  const int64_t step = kGrain / std::gcd(cols, kGrain);
  return std::max(step, kPanelBytes / (cols * dtype_size(DType::f32)) / step * step);
}

int64_t Format::storage_bytes(int64_t rows, int64_t cols) const {
  return checked_mul(rows, row_bytes(cols));
}

void Format::check_output(const Tensor& out) const {
  if (out.dtype() != DType::f32 && out.dtype() != DType::bf16) {
    fail(ErrorKind::generic, "{} decoded to {}", name(), out.describe());
  }
}

void Format::decode(Ops& ops, const Storage& storage, int64_t begin, int64_t end,
                    const Tensor& out) const {
  check_output(out);
  decode_rows(ops, storage, {nullptr, begin, end - begin}, out);
}

void Format::gather(Ops& ops, const Storage& storage, const Tensor& indices,
                    const Tensor& out) const {
  check_output(out);
  decode_rows(ops, storage, {indices.data<int32_t>(), 0, indices.size()}, out);
}

void Format::encode(Ops&, const RowSource&, const Storage&, const Rounding&, Arena&) const {
  fail(ErrorKind::usage, "{} storage cannot be written to", name());
}

std::span<const Format* const> all_formats() {
  static const std::vector<const Format*> kFormats = {
      &f32_format(),      &bf16_format(),           &f16_format(),
      &q8_0_format(),     &q4_0_format(),           &q4_1_format(),
      &q5_0_format(),     &q5_1_format(),           &q2_k_format(),
      &q3_k_format(),     &q4_k_format(),           &q5_k_format(),
      &q6_k_format(),     &iq1_s_format(),          &iq1_m_format(),
      &iq2_xxs_format(),  &iq2_xs_format(),         &iq2_s_format(),
      &iq3_xxs_format(),  &iq3_s_format(),          &iq4_nl_format(),
      &iq4_xs_format(),   &tq1_0_format(),          &tq2_0_format(),
      &mxfp4_format(),    &nvfp4_format(),          &int8_format(),
      &int8_row_format(), &int8_affine_format(),    &int8_dynamic_format(),
      &nf4_format(),      &nf4_double_format(),     &int4_hadamard_format(),
      &bnb_fp4_format(),  &bnb_fp4_double_format(), &int8_absmax_format()};
  return kFormats;
}

FormatPointer unowned(const Format& format) {
  return {FormatPointer(), &format};
}

const Format* format_named(std::string_view name) {
  const auto formats = all_formats();
  const auto found = std::ranges::find(formats, name, &Format::name);
  return found == formats.end() ? nullptr : *found;
}

const Format& find_format(std::string_view name) {
  if (const Format* format = format_named(name)) return *format;
  std::string known;
  for (const Format* format : all_formats()) {
    known += std::string(known.empty() ? "" : ", ") + format->name();
  }
  throw Error(ErrorKind::model, fmt::format("unknown storage format {}", name),
              "known formats: " + known);
}

}  // namespace jackscrew
