// Writes GGUF, version 3: metadata, tensor descriptions, then the tensors' bytes, aligned.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "formats/gguf.h"

namespace jackscrew {

// Keys and values as bytes of the file, in the order in which they were added.
class GgufMetadata {
 public:
  void add(const std::string& key, uint32_t value);
  void add(const std::string& key, float value);
  void add(const std::string& key, bool value);
  void add(const std::string& key, std::string_view value);
  void add(const std::string& key, const char* value) { add(key, std::string_view(value)); }
  void add(const std::string& key, const std::vector<std::string>& values);
  void add(const std::string& key, const std::vector<float>& values);
  void add(const std::string& key, const std::vector<int32_t>& values);
  // A value as GgufFile::encoded() returns it.
  void add_encoded(const std::string& key, std::string_view value);

  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(const std::string& key, GgufType type);
  void begin_array(const std::string& key, GgufType of, size_t count);

  uint64_t count_ = 0;
  std::string bytes_;
};

// A tensor about to be written.
struct GgufTensorSpec {
  std::string name;
  uint32_t type;               // ggml's number
  std::vector<int64_t> shape;  // outermost first
  int64_t bytes;
};

// Writes one file in a single pass: the bytes follow in declared order. Misuse and a failing disk
// are Error(generic).
class GgufWriter {
 public:
  GgufWriter(const fs::path& path, const GgufMetadata& metadata,
             std::vector<GgufTensorSpec> tensors);

  // The size of the file that such a writer writes.
  static int64_t bytes(const GgufMetadata& metadata, const std::vector<GgufTensorSpec>& tensors);

  // Appends all bytes of `name`, or the next chunk of them.
  void write(std::string_view name, std::span<const uint8_t> bytes);
  // Checks that every tensor is complete and syncs the file. Without it the file is not usable.
  void close();

 private:
  std::string where_;
  FileWriter file_;
  std::vector<GgufTensorSpec> tensors_;
  size_t current_ = 0;   // the tensor being written
  int64_t written_ = 0;  // its bytes so far
};

}  // namespace jackscrew
