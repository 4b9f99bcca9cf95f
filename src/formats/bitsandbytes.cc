#include "formats/bitsandbytes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "formats/json_text.h"
#include "formats/shape.h"
#include "quant/dynamic_map.h"
#include "quant/int8_absmax.h"
#include "quant/nf4.h"

namespace jackscrew {

namespace {

using nlohmann::json;
using Bytes = std::span<const uint8_t>;

constexpr std::string_view kFourBitWeight = "";
constexpr std::string_view kNf4State = ".quant_state.bitsandbytes__nf4";
constexpr std::string_view kFp4State = ".quant_state.bitsandbytes__fp4";
constexpr std::string_view kFourBitAbsmax = ".absmax";
constexpr std::string_view kFourBitCodebook = ".quant_map";
constexpr std::string_view kFourBitNestedAbsmax = ".nested_absmax";
constexpr std::string_view kFourBitNestedCodebook = ".nested_quant_map";

// The differences between NF4 and FP4.
struct FourBits {
  const char* type;  // quant_type
  std::string_view state;
  const Format& (*format)();
  const Format& (*double_format)();
  std::span<const float> (*values)();
};
constexpr FourBits kNf4 = {"nf4", kNf4State, nf4_format, nf4_double_format, nf4_values};
constexpr FourBits kFp4 = {"fp4", kFp4State, bnb_fp4_format, bnb_fp4_double_format, bnb_fp4_values};

constexpr std::array<std::string_view, 6> parts_of(const FourBits& kind) {
  return {kFourBitWeight,   kind.state,           kFourBitAbsmax,
          kFourBitCodebook, kFourBitNestedAbsmax, kFourBitNestedCodebook};
}
constexpr std::array kNf4Parts = parts_of(kNf4);
constexpr std::array kFp4Parts = parts_of(kFp4);

constexpr std::string_view kInt8Weight = ".weight";
constexpr std::string_view kInt8Absmax = ".SCB";
constexpr std::string_view kInt8Order = ".weight_format";
constexpr std::array kInt8Parts = {kInt8Weight, kInt8Absmax, kInt8Order};

// The bytes of a vector, whose dtype and size are checked.
Bytes vector_bytes(const LayerTensors& tensors, std::string_view suffix, const char* dtype,
                   int64_t count) {
  return tensors.get(suffix, dtype, {count}).bytes;
}

// Refuses an f32 tensor that differs from `expected` by more than `units` in the last place.
void expect_values(const LayerTensors& tensors, std::string_view suffix,
                   std::span<const float> expected, float units) {
  const Bytes found = vector_bytes(tensors, suffix, "F32", static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    float value = 0;
    std::memcpy(&value, found.data() + i * sizeof value, sizeof value);
    if (!(std::abs(value - expected[i]) <= units * 0x1p-23f * std::abs(expected[i]))) {
      fail(ErrorKind::model, "tensor {} has {} for code {} where {} is expected",
           tensors.name(suffix), value, i, expected[i]);
    }
  }
}

// The bytes of scales [count] in f32, all of them finite.
Bytes scale_bytes(const LayerTensors& tensors, std::string_view suffix, int64_t count) {
  const Bytes bytes = vector_bytes(tensors, suffix, "F32", count);
  for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
    float scale = 0;
    std::memcpy(&scale, bytes.data() + i * sizeof scale, sizeof scale);
    if (!std::isfinite(scale)) {
      fail(ErrorKind::model, "tensor {}: scale {} is {}: its values are not finite",
           tensors.name(suffix), i, scale);
    }
  }
  return bytes;
}

// What is added to the scales that are nested: they stay finite with it, whatever their codes.
float nested_offset(const LayerTensors& tensors, const JsonFields& state) {
  const double offset = state.number("nested_offset");
  float largest = 0.0f;
  for (const float absmax : elements_of<float>(tensors.get(kFourBitNestedAbsmax))) {
    largest = std::max(largest, std::abs(absmax));
  }
  if (!(static_cast<double>(largest) + std::abs(offset) <= std::numeric_limits<float>::max())) {
    fail(ErrorKind::model, "{}: nested_offset is {} beside scales of up to {}: not all are finite",
         state.where(), offset, largest);
  }
  return static_cast<float>(offset);
}

void expect_integer(const JsonFields& state, const char* key, int64_t expected) {
  if (const int64_t found = state.integer(key); found != expected) {
    fail(ErrorKind::model, "{}: {} is {}, only {} is supported", state.where(), key, found,
         expected);
  }
}

void expect_text(const JsonFields& state, const char* key, const std::string& expected) {
  if (const std::string found = state.text(key); found != expected) {
    fail(ErrorKind::model, "{}: {} is {}, only {} is supported", state.where(), key, found,
         expected);
  }
}

template <const FourBits& kind>
StoredTensor read_four_bits(const LayerTensors& tensors, const QuantizationConfig&) {
  const Bytes text = tensors.get(kind.state).bytes;
  const std::string where = tensors.name(kind.state);
  const json root = parse_json({reinterpret_cast<const char*>(text.data()), text.size()}, where);
  const JsonFields state(root, where);
  expect_text(state, "quant_type", kind.type);
  expect_integer(state, "blocksize", kNf4Block);
  StoredTensor out;
  out.shape = state.integers("shape");
  const std::optional<int64_t> elements = shape_elements(out.shape);
  if (out.shape.size() != 2 || !elements || *elements == 0) {
    fail(ErrorKind::model, "{}: shape {} is not that of a matrix", where, shape_text(out.shape));
  }
  out.decoded_dtype = state.text("dtype", "");
  const bool is_double = tensors.find(kFourBitNestedAbsmax) != nullptr;
  const Nf4Parts expected = nf4_parts(is_double, nullptr, out.shape[0], out.shape[1]);
  out.format = unowned(is_double ? kind.double_format() : kind.format());
  expect_values(tensors, kFourBitCodebook, kind.values(), 0);
  // Codes may be declared with another dtype, but are bytes all the same.
  out.bytes = tensors.get(kFourBitWeight).bytes;
  if (static_cast<int64_t>(out.bytes.size()) != expected.codes.bytes()) {
    fail(ErrorKind::model, "tensor {} has {} bytes where {} are expected",
         tensors.name(kFourBitWeight), out.bytes.size(), expected.codes.bytes());
  }
  if (!is_double) {
    out.extra_parts.push_back(scale_bytes(tensors, kFourBitAbsmax, expected.absmax.size()));
    return out;
  }
  out.extra_parts.push_back(vector_bytes(tensors, kFourBitAbsmax, "U8", expected.absmax.size()));
  expect_integer(state, "nested_blocksize", kNf4NestedBlock);
  expect_text(state, "nested_dtype", "float32");
  // bitsandbytes computes this table, with last bits that differ from machine to machine.
  expect_values(tensors, kFourBitNestedCodebook, signed_dynamic_map().values, 4);
  out.extra_parts.push_back(
      scale_bytes(tensors, kFourBitNestedAbsmax, expected.nested_absmax.size()));
  const auto offset = nested_offset(tensors, state);
  std::vector<uint8_t> made(sizeof offset);
  std::memcpy(made.data(), &offset, sizeof offset);
  out.owned_bytes = std::make_shared<const std::vector<uint8_t>>(std::move(made));
  out.extra_parts.emplace_back(*out.owned_bytes);
  return out;
}

template <const FourBits& kind>
QuantisedLayout four_bits_layout(const char* help, std::span<const std::string_view> parts) {
  return {.method = "bitsandbytes",
          .help = help,
          .marker = kind.state,
          .parts = parts,
          .needs_no_config = true,
          .read = read_four_bits<kind>,
          .weight = ""};
}

StoredTensor read_int8(const LayerTensors& tensors, const QuantizationConfig&) {
  const SafetensorsEntry& codes = tensors.matrix(kInt8Weight, "I8");
  // Files of old versions may have the codes in an order made for one kind of GPU.
  if (const SafetensorsEntry* order = tensors.find(kInt8Order)) {
    if (order->bytes.size() != 1 || order->bytes[0] != 0) {
      fail(ErrorKind::model, "tensor {}: only rows in order are read (0)", order->name);
    }
  }
  const SafetensorsEntry& absmax = tensors.get(kInt8Absmax, "F32", {codes.shape[0]});
  const auto values = elements_of<float>(absmax);
  for (size_t row = 0; row < values.size(); ++row) {
    if (!(std::abs(values[row]) * 128 < std::numeric_limits<float>::infinity())) {
      fail(ErrorKind::model, "tensor {}: {} for row {}: its values are not finite", absmax.name,
           values[row], row);
    }
  }
  StoredTensor out;
  out.format = unowned(int8_absmax_format());
  out.shape = codes.shape;
  tensors.set_bytes(out, kInt8Weight, {kInt8Absmax});
  return out;
}

}  // namespace

QuantisedLayout bitsandbytes_nf4_layout() {
  return four_bits_layout<kNf4>("bitsandbytes (NF4, FP4, LLM.int8)", kNf4Parts);
}

QuantisedLayout bitsandbytes_fp4_layout() {
  return four_bits_layout<kFp4>(nullptr, kFp4Parts);  // as above
}

QuantisedLayout bitsandbytes_int8_layout() {
  return {.method = "bitsandbytes",
          .help = nullptr,  // as above
          .marker = kInt8Absmax,
          .parts = kInt8Parts,
          .needs_no_config = true,
          .read = read_int8};
}

std::vector<TensorBytes> nf4_tensors(const std::string& name, const Format& format,
                                     const Storage& storage, const std::string& dtype) {
  const bool is_double = &format == &nf4_double_format();
  if (!is_double && &format != &nf4_format()) {
    fail(ErrorKind::generic, "{} is stored as {}, not as nf4", name, format.name());
  }
  const Nf4Parts parts = nf4_parts(is_double, storage.bytes.raw(), storage.rows, storage.cols);
  std::vector<TensorBytes> out;
  const auto add = [&](std::string_view suffix, const char* type, std::vector<int64_t> shape,
                       const void* from, int64_t bytes) {
    const auto* begin = static_cast<const uint8_t*>(from);
    out.push_back(
        {{fmt::format("{}{}", name, suffix), type, std::move(shape)}, {begin, begin + bytes}});
  };
  const auto add_part = [&](std::string_view suffix, const Tensor& part) {
    add(suffix, part.dtype() == DType::u8 ? "U8" : "F32", {part.size()}, part.raw(), part.bytes());
  };
  json state = {{"quant_type", "nf4"},
                {"blocksize", kNf4Block},
                {"dtype", dtype},
                {"shape", {storage.rows, storage.cols}}};
  add(kFourBitWeight, "U8", {parts.codes.size(), 1}, parts.codes.raw(), parts.codes.bytes());
  add_part(kFourBitAbsmax, parts.absmax);
  add(kFourBitCodebook, "F32", {16}, nf4_values().data(), 16 * sizeof(float));
  if (is_double) {
    add_part(kFourBitNestedAbsmax, parts.nested_absmax);
    add(kFourBitNestedCodebook, "F32", {256}, signed_dynamic_map().values, 256 * sizeof(float));
    state["nested_blocksize"] = kNf4NestedBlock;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = static_cast<double>(parts.offset.data<float>()[0]);
  }
  const std::string text = dump_json(state, -1);
  add(kNf4State, "U8", {static_cast<int64_t>(text.size())}, text.data(),
      static_cast<int64_t>(text.size()));
  return out;
}

json nf4_quantization_config(const std::string& compute_dtype,
                             const std::vector<std::string>& plain) {
  return {{"quant_method", "bitsandbytes"},
          {"load_in_4bit", true},
          {"load_in_8bit", false},
          {"bnb_4bit_quant_type", "nf4"},
          {"bnb_4bit_compute_dtype", compute_dtype},
          {"bnb_4bit_use_double_quant", false},
          {"bnb_4bit_quant_storage", "uint8"},
          {"llm_int8_skip_modules", plain},
          {"llm_int8_enable_fp32_cpu_offload", false}};
}

}  // namespace jackscrew
