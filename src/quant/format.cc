#include "quant/format.h"

#include <vector>

#include "base/error.h"
#include "quant/plain.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

namespace jackscrew {

int64_t Format::row_bytes(int64_t cols) const {
  if (cols <= 0 || cols % block_elements() != 0) {
    fail(ErrorKind::model, "rows of {} elements cannot be stored as {}, whose blocks hold {}", cols,
         name(), block_elements());
  }
  return checked_mul(cols / block_elements(), block_bytes());
}

void Format::encode_rows(Ops&, const Tensor&, const Tensor&, int64_t) const {
  fail(ErrorKind::usage, "{} storage cannot be written to", name());
}

std::span<const Format* const> all_formats() {
  static const std::vector<const Format*> kFormats = {
      &f32_format(),  &bf16_format(), &f16_format(),  &q8_0_format(), &q4_0_format(),
      &q4_1_format(), &q5_0_format(), &q5_1_format(), &q4_k_format(), &q6_k_format()};
  return kFormats;
}

const Format& find_format(std::string_view name) {
  std::string known;
  for (const Format* format : all_formats()) {
    if (name == format->name()) return *format;
    known += std::string(known.empty() ? "" : ", ") + format->name();
  }
  throw Error(ErrorKind::model, fmt::format("unknown storage format {}", name),
              "known formats: " + known);
}

}  // namespace jackscrew
