// GGUF, versions 2 and 3: the single-file format of llama.cpp. Metadata, tensor descriptions, then
// the bytes of the tensors, aligned.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/map_guard.h"

namespace jackscrew {

// Types of metadata values, under their numbers in the file.
enum class GgufType : uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12
};

// The alignment of tensors in a file without general.alignment.
inline constexpr int64_t kGgufAlignment = 32;

// "F32", "Q4_K" ...; "type 99" for a number without a name.
std::string ggml_type_name(uint32_t type);
// ggml's number of a storage format's type; none where it has no such type.
std::optional<uint32_t> ggml_type(std::string_view format);
// The names of the types that storage formats exist for: "F32, F16, ...".
std::string readable_ggml_types();

struct GgufTensor {
  std::string name;
  uint32_t type = 0;               // ggml's number
  std::string format;              // the storage format, "q4_k"; empty when it is not supported
  std::vector<int64_t> shape;      // outermost first: ggml's extents reversed
  int64_t offset = 0;              // bytes from the start of the file
  std::span<const uint8_t> bytes;  // in the file's map; empty when the format is not supported
};

// Whether a file begins as GGUF files do. Throws Error(generic) or Unreadable where the system
// refuses to look at it or to read it.
bool is_gguf_file(const fs::path& path);

// One mapped file. Construction walks all of it except the tensors' bytes and checks every count,
// length and offset against the file's size; damage is Error(model) naming the file and what is
// wrong.
class GgufFile {
 public:
  explicit GgufFile(const fs::path& path);

  const fs::path& path() const { return file_.path(); }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in file order
  // Null when there is no such tensor.
  const GgufTensor* find(std::string_view name) const;

  bool has(std::string_view key) const { return values_.contains(key); }
  std::vector<std::string> keys() const;
  // nullopt when there is no such key.
  std::optional<GgufType> type(std::string_view key) const;

  // The value of a key as it lies in the file, its type first; empty when the key is absent.
  std::string encoded(std::string_view key) const;

  // The value of a key. An absent key without a fallback, a value of another type and a number out
  // of range are Error(model) naming file and key.
  int64_t integer(std::string_view key, std::optional<int64_t> fallback = {}) const;
  // f32 values as the shortest decimal that reads back to the same float: 1e-05, not 9.99...e-06.
  double number(std::string_view key, std::optional<double> fallback = {}) const;
  bool boolean(std::string_view key, std::optional<bool> fallback = {}) const;
  std::string text(std::string_view key, std::optional<std::string> fallback = {}) const;
  // Arrays; empty when the key is absent.
  std::vector<int64_t> integers(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;
  std::vector<std::string> texts(std::string_view key) const;

  // read_whole() of this file, for what reads values.
  template <class Read>
  auto read_whole(const Read& read) const {
    return jackscrew::read_whole(file_, read);
  }

  // Call when these bytes of the map are no longer needed: their pages may be dropped.
  void release(std::span<const uint8_t> bytes) const;

 private:
  // A value as it lies in the file, its bounds checked. Scalars are arrays of one.
  struct Value {
    GgufType type = GgufType::u8;  // of the elements
    bool is_array = false;
    int64_t count = 1;
    std::span<const uint8_t> bytes;    // of strings: length and text, one after the other
    std::span<const uint8_t> encoded;  // the type and all that follows
  };
  class Cursor;

  void read_all();
  static Value read_value(Cursor& cursor, GgufType type, const std::string& key);
  void read_metadata(Cursor& cursor, uint64_t count);
  void read_tensors(Cursor& cursor, uint64_t count);
  void place_tensors(uint64_t position);
  const Value* find_value(std::string_view key) const;
  const Value& scalar(std::string_view key, bool right_type, const char* expected) const;
  const Value* array(std::string_view key) const;
  int64_t integer_at(const Value& value, int64_t index, std::string_view key) const;
  double number_at(const Value& value, int64_t index, std::string_view key) const;
  [[noreturn]] void fail_type(std::string_view key, const char* expected) const;

  MappedFile file_;
  std::string where_;
  std::map<std::string, Value, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace jackscrew
