#include "formats/exl3.h"

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "formats/shape.h"
#include "quant/exl3.h"
#include "quant/exl3.rows.h"

namespace jackscrew {

namespace {

constexpr std::string_view kExl3Trellis = ".trellis";
constexpr std::string_view kExl3Input = ".suh";
constexpr std::string_view kExl3Output = ".svh";
constexpr std::string_view kExl3InputSigns = ".su";
constexpr std::string_view kExl3OutputSigns = ".sv";
constexpr std::string_view kExl3Mcg = ".mcg";
constexpr std::string_view kExl3Mul1 = ".mul1";
constexpr std::array kExl3Parts = {kExl3Trellis,     kExl3Input, kExl3Output, kExl3InputSigns,
                                   kExl3OutputSigns, kExl3Mcg,   kExl3Mul1};

constexpr int64_t kExl3TileSide = 16;  // rows and columns of a tile; also the signs in a word

Exl3Codebook codebook_of(const LayerTensors& tensors) {
  const SafetensorsEntry* mcg = tensors.find(kExl3Mcg);
  const SafetensorsEntry* mul1 = tensors.find(kExl3Mul1);
  if (mcg != nullptr && mul1 != nullptr) {
    fail(ErrorKind::model, "there are both {} and {}", mcg->name, mul1->name);
  }
  // Each tensor holds the multiplier of its codebook.
  const auto expect_factor = [](const SafetensorsEntry& entry, uint32_t expected) {
    const auto found = elements_of<uint32_t>(entry);
    if (entry.bytes.size() != sizeof expected || found[0] != expected) {
      fail(ErrorKind::model, "tensor {} is not the number {:#x}", entry.name, expected);
    }
  };
  if (mcg != nullptr) expect_factor(*mcg, Exl3Mcg::kFactor);
  if (mul1 != nullptr) expect_factor(*mul1, Exl3Mul1::kFactor);
  return mcg != nullptr    ? Exl3Codebook::mcg
         : mul1 != nullptr ? Exl3Codebook::mul1
                           : Exl3Codebook::plain;
}

const char* settings_of(Exl3Codebook codebook) {
  if (codebook == Exl3Codebook::plain) return "";
  return codebook == Exl3Codebook::mcg ? "mcg" : "mul1";
}

// The scales of columns or of rows as bytes of f16: the file's, or made from its signs.
std::vector<uint8_t> scales_of(const LayerTensors& tensors, std::string_view scales,
                               std::string_view signs, int64_t count) {
  std::vector<f16> values;
  if (tensors.find(scales) == nullptr && tensors.find(signs) != nullptr) {
    for (const uint16_t word :
         elements_of<uint16_t>(tensors.get(signs, "I16", {count / kExl3TileSide}))) {
      for (int bit = 0; bit < kExl3TileSide; ++bit) {
        values.push_back(to_f16((word >> bit & 1) != 0 ? -1.0f : 1.0f));
      }
    }
  } else {
    const SafetensorsEntry& entry = tensors.get(scales, "F16", {count});
    values = elements_of<f16>(entry);
    for (size_t i = 0; i < values.size(); ++i) {
      if (!std::isfinite(to_float(values[i]))) {
        fail(ErrorKind::model, "tensor {}: scale {} is {}", entry.name, i, to_float(values[i]));
      }
    }
  }
  std::vector<uint8_t> bytes(values.size() * sizeof(f16));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

StoredTensor read_exl3(const LayerTensors& tensors, const QuantizationConfig&) {
  const SafetensorsEntry& trellis = tensors.get(kExl3Trellis, "I16");
  const std::vector<int64_t>& shape = trellis.shape;
  if (shape.size() != 3 || !is_extent(shape[0]) || !is_extent(shape[1]) ||
      shape[2] % kExl3TileSide != 0) {
    throw Error(ErrorKind::model,
                fmt::format("tensor {} of shape {} is not a matrix of EXL3", trellis.name,
                            shape_text(shape)),
                "read are 1 to 8 whole bits");
  }
  StoredTensor out;
  out.shape = {shape[1] * kExl3TileSide, shape[0] * kExl3TileSide};
  const Exl3Codebook codebook = codebook_of(tensors);
  out.format = make_exl3_format({out.shape[0], out.shape[1], shape[2] / kExl3TileSide, codebook});
  out.settings = settings_of(codebook);
  out.padding_rows = kExl3Block - 1;
  std::vector<uint8_t> made = scales_of(tensors, kExl3Input, kExl3InputSigns, out.shape[1]);
  const size_t input = made.size();
  const auto output = scales_of(tensors, kExl3Output, kExl3OutputSigns, out.shape[0]);
  made.insert(made.end(), output.begin(), output.end());
  out.bytes = trellis.bytes;
  out.owned_bytes = std::make_shared<const std::vector<uint8_t>>(std::move(made));
  out.extra_parts = {std::span(*out.owned_bytes).first(input),
                     std::span(*out.owned_bytes).subspan(input)};
  return out;
}

}  // namespace

QuantisedLayout exl3_layout() {
  return {.method = "exl3",
          .help = "EXL3",
          .marker = kExl3Trellis,
          .parts = kExl3Parts,
          .needs_no_config = true,
          .read = read_exl3,
          .rounds_tied_head = true};
}

}  // namespace jackscrew
