#include "formats/gguf.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "base/checked.h"
#include "base/directory.h"
#include "base/error.h"
#include "base/map_guard.h"
#include "base/text.h"
#include "formats/shape.h"

namespace jackscrew {

namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxNameBytes = 65535;
constexpr uint32_t kMaxDims = 4;
constexpr int64_t kMaxAlignment = int64_t{1} << 20;
// The least bytes that a metadata entry and a tensor description take: these bound the counts.
constexpr uint64_t kMinValueBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

// A type of ggml: `elements` in a row take `bytes`.
struct GgmlType {
  const char* name;  // null: a number that ggml has retired
  int64_t elements;
  int64_t bytes;  // 0: the type is not read
};
// Indexed by ggml's type numbers.
constexpr std::array<GgmlType, 42> kGgmlTypes = {
    {{"F32", 1, 4},        {"F16", 1, 2},       {"Q4_0", 32, 18},     {"Q4_1", 32, 20},
     {nullptr, 0, 0},      {nullptr, 0, 0},     {"Q5_0", 32, 22},     {"Q5_1", 32, 24},
     {"Q8_0", 32, 34},     {"Q8_1", 0, 0},      {"Q2_K", 256, 84},    {"Q3_K", 256, 110},
     {"Q4_K", 256, 144},   {"Q5_K", 256, 176},  {"Q6_K", 256, 210},   {"Q8_K", 0, 0},
     {"IQ2_XXS", 256, 66}, {"IQ2_XS", 256, 74}, {"IQ3_XXS", 256, 98}, {"IQ1_S", 256, 50},
     {"IQ4_NL", 32, 18},   {"IQ3_S", 256, 110}, {"IQ2_S", 256, 82},   {"IQ4_XS", 256, 136},
     {"I8", 0, 0},         {"I16", 0, 0},       {"I32", 0, 0},        {"I64", 0, 0},
     {"F64", 0, 0},        {"IQ1_M", 256, 56},  {"BF16", 1, 2},       {nullptr, 0, 0},
     {nullptr, 0, 0},      {nullptr, 0, 0},     {"TQ1_0", 256, 54},   {"TQ2_0", 256, 66},
     {nullptr, 0, 0},      {nullptr, 0, 0},     {nullptr, 0, 0},      {"MXFP4", 32, 17},
     {"NVFP4", 64, 36},    {"Q1_0", 0, 0}}};

// Null for a type that is not read.
const GgmlType* readable_type(uint32_t type) {
  return type < kGgmlTypes.size() && kGgmlTypes[type].bytes > 0 ? &kGgmlTypes[type] : nullptr;
}

// Bytes of one element; 0 for strings and arrays, which have no fixed size.
uint64_t element_bytes(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean:
      return 1;
    case GgufType::u16:
    case GgufType::i16:
      return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32:
      return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64:
      return 8;
    case GgufType::string:
    case GgufType::array:
      break;
  }
  return 0;
}

bool is_integer(GgufType type) {
  return type != GgufType::f32 && type != GgufType::f64 && type != GgufType::boolean &&
         type != GgufType::string && type != GgufType::array;
}

bool is_number(GgufType type) {
  return is_integer(type) || type == GgufType::f32 || type == GgufType::f64;
}

template <typename T>
T load(std::span<const uint8_t> bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

double shortest_decimal(float value) {
  if (!std::isfinite(value)) return static_cast<double>(value);
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double out = 0.0;
  std::from_chars(text, end, out);
  return out;
}

}  // namespace

std::string ggml_type_name(uint32_t type) {
  const bool known = type < kGgmlTypes.size() && kGgmlTypes[type].name != nullptr;
  return known ? kGgmlTypes[type].name : fmt::format("type {}", type);
}

std::optional<uint32_t> ggml_type(std::string_view format) {
  for (uint32_t type = 0; type < kGgmlTypes.size(); ++type) {
    if (readable_type(type) != nullptr && lower_case(kGgmlTypes[type].name) == format) return type;
  }
  return std::nullopt;
}

std::string readable_ggml_types() {
  std::string out;
  for (const GgmlType& type : kGgmlTypes) {
    if (type.bytes > 0) out += fmt::format("{}{}", out.empty() ? "" : ", ", type.name);
  }
  return out;
}

// Reads forward through the file; every read is checked against what is left.
class GgufFile::Cursor {
 public:
  Cursor(std::span<const uint8_t> bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  std::span<const uint8_t> take(uint64_t size, std::string_view what) {
    if (size > left()) {
      fail(ErrorKind::model, "{}: file ends inside {} ({} bytes needed, {} left)", where_, what,
           size, left());
    }
    const auto out = bytes_.subspan(static_cast<size_t>(position_), static_cast<size_t>(size));
    position_ += size;
    return out;
  }

  template <typename T>
  T number(std::string_view what) {
    return load<T>(take(sizeof(T), what), 0);
  }

  std::string name(std::string_view what) {
    const uint64_t size = number<uint64_t>(what);
    if (size == 0 || size > kMaxNameBytes) {
      fail(ErrorKind::model, "{}: {} of {} bytes", where_, what, size);
    }
    const auto text = take(size, what);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }

  std::span<const uint8_t> since(uint64_t begin) const {
    return bytes_.subspan(static_cast<size_t>(begin), static_cast<size_t>(position_ - begin));
  }

  const std::string& where() const { return where_; }

 private:
  std::span<const uint8_t> bytes_;
  const std::string& where_;
  uint64_t position_ = 0;
};

bool is_gguf_file(const fs::path& path) {
  std::error_code gone;  // meanwhile
  if (!is_there(path) || !fs::is_regular_file(path, gone)) return false;
  const std::string begin = read_beginning(path, sizeof(kMagic));
  return begin.size() == sizeof(kMagic) && std::memcmp(begin.data(), &kMagic, sizeof(kMagic)) == 0;
}

GgufFile::GgufFile(const fs::path& path) : file_(path), where_(path.string()) {
  read_whole([&] { read_all(); });
}

void GgufFile::read_all() {
  Cursor cursor(file_.bytes(), where_);
  if (cursor.number<uint32_t>("its magic number") != kMagic) {
    throw Error(ErrorKind::model, fmt::format("{} is not a GGUF file", where_),
                "give a Hugging Face directory, a GGUF file, a config.json or a named shape");
  }
  const auto version = cursor.number<uint32_t>("its version");
  if (version != 2 && version != 3) {
    const bool swapped = (version & 0xFFFFu) == 0;
    throw Error(ErrorKind::model,
                swapped ? fmt::format("{}: GGUF file in big-endian byte order", where_)
                        : fmt::format("{}: GGUF version {}", where_, version),
                "supported: little-endian GGUF versions 2 and 3");
  }
  const uint64_t tensor_count = cursor.number<uint64_t>("its tensor count");
  const uint64_t value_count = cursor.number<uint64_t>("its metadata count");
  if (value_count > cursor.left() / kMinValueBytes) {
    fail(ErrorKind::model, "{}: {} metadata entries in {} bytes", where_, value_count,
         cursor.left());
  }
  read_metadata(cursor, value_count);
  if (tensor_count > cursor.left() / kMinTensorBytes) {
    fail(ErrorKind::model, "{}: {} tensors described in {} bytes", where_, tensor_count,
         cursor.left());
  }
  read_tensors(cursor, tensor_count);
  place_tensors(cursor.position());
}

GgufFile::Value GgufFile::read_value(Cursor& cursor, GgufType type, const std::string& key) {
  Value value;
  value.type = type;
  uint64_t count = 1;
  if (type == GgufType::array) {
    value.is_array = true;
    value.type = static_cast<GgufType>(cursor.number<uint32_t>(key));
    count = cursor.number<uint64_t>(key);
  }
  if (value.type == GgufType::string) {
    const uint64_t begin = cursor.position();
    // Each string takes 8 bytes at least, so a false count soon hits the end of the file.
    for (uint64_t i = 0; i < count; ++i) cursor.take(cursor.number<uint64_t>(key), key);
    value.bytes = cursor.since(begin);
  } else {
    const uint64_t size = element_bytes(value.type);
    if (size == 0) {
      fail(ErrorKind::model, "{}: {} is {} type {}", cursor.where(), key,
           value.is_array ? "an array of" : "of unknown", static_cast<uint32_t>(value.type));
    }
    if (count > cursor.left() / size) {
      fail(ErrorKind::model, "{}: {} has {} elements in {} bytes", cursor.where(), key, count,
           cursor.left());
    }
    value.bytes = cursor.take(count * size, key);
  }
  value.count = narrow<int64_t>(count);
  return value;
}

void GgufFile::read_metadata(Cursor& cursor, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const std::string key = cursor.name("a metadata key");
    const uint64_t begin = cursor.position();
    const auto type = static_cast<GgufType>(cursor.number<uint32_t>(key));
    Value value = read_value(cursor, type, key);
    value.encoded = cursor.since(begin);
    if (!values_.emplace(key, std::move(value)).second) {
      fail(ErrorKind::model, "{}: {} appears twice", where_, key);
    }
  }
}

void GgufFile::read_tensors(Cursor& cursor, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    GgufTensor tensor;
    tensor.name = cursor.name("a tensor's name");
    const uint32_t dims = cursor.number<uint32_t>(tensor.name);
    if (dims == 0 || dims > kMaxDims) {
      fail(ErrorKind::model, "{}: tensor {} has {} dimensions", where_, tensor.name, dims);
    }
    for (uint32_t d = 0; d < dims; ++d) {
      const uint64_t extent = cursor.number<uint64_t>(tensor.name);
      if (extent == 0 || extent > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        fail(ErrorKind::model, "{}: tensor {} has an extent of {}", where_, tensor.name, extent);
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
    }
    tensor.type = cursor.number<uint32_t>(tensor.name);
    const uint64_t offset = cursor.number<uint64_t>(tensor.name);
    if (offset > file_.bytes().size()) {
      fail(ErrorKind::model, "{}: tensor {} begins at {}, past the end of the file", where_,
           tensor.name, offset);
    }
    tensor.offset = static_cast<int64_t>(offset);
    if (!index_.emplace(tensor.name, tensors_.size()).second) {
      fail(ErrorKind::model, "{}: tensor {} appears twice", where_, tensor.name);
    }
    tensors_.push_back(std::move(tensor));
  }
}

// Turns offsets into spans of bytes, and checks that these are aligned, inside the file and do not
// overlap.
void GgufFile::place_tensors(uint64_t position) {
  if (tensors_.empty()) return;
  const int64_t alignment = integer("general.alignment", kGgufAlignment);
  if (alignment <= 0 || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
    fail(ErrorKind::model, "{}: general.alignment = {} is not a power of two up to {}", where_,
         alignment, kMaxAlignment);
  }
  const auto file_bytes = static_cast<int64_t>(file_.bytes().size());
  const int64_t data = round_up(static_cast<int64_t>(position), alignment);
  std::vector<const GgufTensor*> placed;
  for (GgufTensor& tensor : tensors_) {
    if (tensor.offset % alignment != 0) {
      fail(ErrorKind::model, "{}: tensor {} at offset {} is not aligned to {}", where_, tensor.name,
           tensor.offset, alignment);
    }
    tensor.offset = checked_add(tensor.offset, data);
    const GgmlType* type = readable_type(tensor.type);
    if (tensor.offset > file_bytes) {
      fail(ErrorKind::model, "{}: tensor {} begins past the end of the file", where_, tensor.name);
    }
    if (type == nullptr) continue;
    const std::optional<int64_t> elements = shape_elements(tensor.shape);
    if (!elements || tensor.shape.back() % type->elements != 0) {
      fail(ErrorKind::model, "{}: tensor {} of shape {} cannot be stored as {}", where_,
           tensor.name, shape_text(tensor.shape), ggml_type_name(tensor.type));
    }
    const std::optional<int64_t> bytes = shape_elements({*elements / type->elements, type->bytes});
    if (!bytes || *bytes > file_bytes - tensor.offset) {
      fail(ErrorKind::model, "{}: tensor {} {} {} reaches past the end of the file", where_,
           tensor.name, ggml_type_name(tensor.type), shape_text(tensor.shape));
    }
    tensor.format = lower_case(type->name);
    tensor.bytes =
        file_.bytes().subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(*bytes));
    placed.push_back(&tensor);
  }
  std::sort(placed.begin(), placed.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < placed.size(); ++i) {
    const GgufTensor& before = *placed[i - 1];
    if (before.offset + static_cast<int64_t>(before.bytes.size()) > placed[i]->offset) {
      fail(ErrorKind::model, "{}: tensors {} and {} overlap", where_, before.name, placed[i]->name);
    }
  }
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::vector<std::string> GgufFile::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : values_) out.push_back(key);
  return out;
}

std::optional<GgufType> GgufFile::type(std::string_view key) const {
  const Value* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  return value->is_array ? GgufType::array : value->type;
}

std::string GgufFile::encoded(std::string_view key) const {
  const Value* value = find_value(key);
  if (value == nullptr) return {};
  return {reinterpret_cast<const char*>(value->encoded.data()), value->encoded.size()};
}

const GgufFile::Value* GgufFile::find_value(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void GgufFile::fail_type(std::string_view key, const char* expected) const {
  fail(ErrorKind::model, "{}: {} is not {}", where_, key, expected);
}

// The value of a key that must exist. `right_type`: whether the caller found it to be a scalar of
// the type that `expected` names.
const GgufFile::Value& GgufFile::scalar(std::string_view key, bool right_type,
                                        const char* expected) const {
  const Value* value = find_value(key);
  if (value == nullptr) fail(ErrorKind::model, "{}: {} is missing", where_, key);
  if (!right_type) fail_type(key, expected);
  return *value;
}

const GgufFile::Value* GgufFile::array(std::string_view key) const {
  const Value* value = find_value(key);
  if (value != nullptr && !value->is_array) fail_type(key, "an array");
  return value;
}

int64_t GgufFile::integer_at(const Value& value, int64_t index, std::string_view key) const {
  switch (value.type) {
    case GgufType::u8:
      return load<uint8_t>(value.bytes, index);
    case GgufType::i8:
      return load<int8_t>(value.bytes, index);
    case GgufType::u16:
      return load<uint16_t>(value.bytes, index);
    case GgufType::i16:
      return load<int16_t>(value.bytes, index);
    case GgufType::u32:
      return load<uint32_t>(value.bytes, index);
    case GgufType::i32:
      return load<int32_t>(value.bytes, index);
    case GgufType::i64:
      return load<int64_t>(value.bytes, index);
    case GgufType::u64: {
      const uint64_t wide = load<uint64_t>(value.bytes, index);
      if (wide > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        fail(ErrorKind::model, "{}: {} = {} is out of range", where_, key, wide);
      }
      return static_cast<int64_t>(wide);
    }
    default:
      fail_type(key, "an integer");
  }
}

double GgufFile::number_at(const Value& value, int64_t index, std::string_view key) const {
  if (value.type == GgufType::f32) return shortest_decimal(load<float>(value.bytes, index));
  if (value.type == GgufType::f64) return load<double>(value.bytes, index);
  return static_cast<double>(integer_at(value, index, key));
}

int64_t GgufFile::integer(std::string_view key, std::optional<int64_t> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const GgufType found = type(key).value_or(GgufType::array);
  return integer_at(scalar(key, is_integer(found), "an integer"), 0, key);
}

double GgufFile::number(std::string_view key, std::optional<double> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const GgufType found = type(key).value_or(GgufType::array);
  return number_at(scalar(key, is_number(found), "a number"), 0, key);
}

bool GgufFile::boolean(std::string_view key, std::optional<bool> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const GgufType found = type(key).value_or(GgufType::array);
  return scalar(key, found == GgufType::boolean, "a boolean").bytes[0] != 0;
}

std::string GgufFile::text(std::string_view key, std::optional<std::string> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const GgufType found = type(key).value_or(GgufType::array);
  const auto bytes = scalar(key, found == GgufType::string, "a string").bytes.subspan(8);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<int64_t> GgufFile::integers(std::string_view key) const {
  std::vector<int64_t> out;
  const Value* value = array(key);
  for (int64_t i = 0; value != nullptr && i < value->count; ++i) {
    out.push_back(integer_at(*value, i, key));
  }
  return out;
}

std::vector<double> GgufFile::numbers(std::string_view key) const {
  std::vector<double> out;
  const Value* value = array(key);
  for (int64_t i = 0; value != nullptr && i < value->count; ++i) {
    out.push_back(number_at(*value, i, key));
  }
  return out;
}

std::vector<std::string> GgufFile::texts(std::string_view key) const {
  std::vector<std::string> out;
  const Value* value = array(key);
  if (value == nullptr) return out;
  if (value->type != GgufType::string) fail_type(key, "an array of strings");
  Cursor cursor(value->bytes, where_);
  for (int64_t i = 0; i < value->count; ++i) {
    const auto bytes = cursor.take(cursor.number<uint64_t>(key), key);
    out.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return out;
}

void GgufFile::release(std::span<const uint8_t> bytes) const {
  const std::span<const uint8_t> all = file_.bytes();
  const std::less<const uint8_t*> before;
  if (before(bytes.data(), all.data()) ||
      before(all.data() + all.size(), bytes.data() + bytes.size())) {
    fail(ErrorKind::generic, "release of bytes outside {}", where_);
  }
  file_.release(static_cast<size_t>(bytes.data() - all.data()), bytes.size());
}

}  // namespace jackscrew
