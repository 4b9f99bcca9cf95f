#include "formats/bitsandbytes.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "formats/json_text.h"
#include "formats/shape.h"
#include "quant/dynamic_map.h"
#include "quant/nf4.h"

namespace jackscrew {

namespace {

using nlohmann::json;
using Bytes = std::span<const uint8_t>;

// The tensors of one weight, looked up and checked.
class WeightTensors {
 public:
  WeightTensors(const std::string& name,
                const std::function<const SafetensorsEntry*(const std::string&)>& find)
      : name_(name), find_(find) {}

  bool has(std::string_view suffix) const {
    return find_(fmt::format("{}{}", name_, suffix)) != nullptr;
  }

  // The bytes of a tensor of that type and size; of any type and size where they are not given.
  Bytes bytes(std::string_view suffix, const char* dtype = nullptr, int64_t count = -1) const {
    const std::string full = fmt::format("{}{}", name_, suffix);
    const SafetensorsEntry* entry = find_(full);
    if (entry == nullptr) fail(ErrorKind::model, "tensor {} is missing", full);
    if (dtype == nullptr) return entry->bytes;
    if (entry->dtype != dtype || shape_elements(entry->shape) != count) {
      fail(ErrorKind::model, "tensor {} is {} {} where {} of {} elements is expected", full,
           entry->dtype, shape_text(entry->shape), dtype, count);
    }
    return entry->bytes;
  }

  // Refuses a tensor of f32 that is not `expected`, but for so many units in the last place.
  void expect_values(std::string_view suffix, std::span<const float> expected, float units) const {
    const Bytes found = bytes(suffix, "F32", static_cast<int64_t>(expected.size()));
    for (size_t i = 0; i < expected.size(); ++i) {
      float value = 0;
      std::memcpy(&value, found.data() + i * sizeof value, sizeof value);
      if (!(std::abs(value - expected[i]) <= units * 0x1p-23f * std::abs(expected[i]))) {
        fail(ErrorKind::model, "tensor {}{} has {} for code {} where {} is expected", name_, suffix,
             value, i, expected[i]);
      }
    }
  }

 private:
  const std::string& name_;
  const std::function<const SafetensorsEntry*(const std::string&)>& find_;
};

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

}  // namespace

StoredTensor read_nf4(const std::string& name,
                      const std::function<const SafetensorsEntry*(const std::string&)>& find,
                      std::array<uint8_t, 4>& offset) {
  const WeightTensors parts(name, find);
  const Bytes text = parts.bytes(kNf4StateSuffix);
  const std::string where = fmt::format("{}{}", name, kNf4StateSuffix);
  const json root = parse_json({reinterpret_cast<const char*>(text.data()), text.size()}, where);
  const JsonFields state(root, where);
  expect_text(state, "quant_type", "nf4");
  expect_integer(state, "blocksize", kNf4Block);
  StoredTensor out;
  out.name = name;
  out.shape = state.integers("shape");
  const std::optional<int64_t> elements = shape_elements(out.shape);
  if (out.shape.size() != 2 || !elements || *elements == 0) {
    fail(ErrorKind::model, "{}: shape {} is not that of a matrix", where, shape_text(out.shape));
  }
  const bool is_double = parts.has(".nested_absmax");
  const Nf4Parts expected = nf4_parts(is_double, nullptr, out.shape[0], out.shape[1]);
  out.format = is_double ? "nf4_double" : "nf4";
  parts.expect_values(".quant_map", nf4_values(), 0);
  // Codes may be declared as another type: they are bytes all the same.
  out.bytes = parts.bytes("");
  if (static_cast<int64_t>(out.bytes.size()) != expected.codes.bytes()) {
    fail(ErrorKind::model, "tensor {} has {} bytes where {} are expected", name, out.bytes.size(),
         expected.codes.bytes());
  }
  out.more.push_back(parts.bytes(".absmax", is_double ? "U8" : "F32", expected.absmax.size()));
  if (!is_double) return out;
  expect_integer(state, "nested_blocksize", kNf4NestedBlock);
  expect_text(state, "nested_dtype", "float32");
  // Those of bitsandbytes differ from machine to machine in their last bits.
  parts.expect_values(".nested_quant_map", signed_dynamic_map().values, 4);
  out.more.push_back(parts.bytes(".nested_absmax", "F32", expected.nested_absmax.size()));
  const auto value = static_cast<float>(state.number("nested_offset"));
  std::memcpy(offset.data(), &value, sizeof value);
  out.more.emplace_back(offset);
  return out;
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
  add("", "U8", {parts.codes.size(), 1}, parts.codes.raw(), parts.codes.bytes());
  add_part(".absmax", parts.absmax);
  add(".quant_map", "F32", {16}, nf4_values().data(), 16 * sizeof(float));
  if (is_double) {
    add_part(".nested_absmax", parts.nested_absmax);
    add(".nested_quant_map", "F32", {256}, signed_dynamic_map().values, 256 * sizeof(float));
    state["nested_blocksize"] = kNf4NestedBlock;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = static_cast<double>(parts.offset.data<float>()[0]);
  }
  const std::string text = dump_json(state, -1);
  add(kNf4StateSuffix, "U8", {static_cast<int64_t>(text.size())}, text.data(),
      static_cast<int64_t>(text.size()));
  return out;
}

}  // namespace jackscrew
