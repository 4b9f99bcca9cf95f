// safetensors: the file format of Hugging Face weights. A file is an 8-byte length, a JSON header
// with names, dtypes, shapes and offsets, and the bytes of the tensors without gaps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"
#include "quant/stored_tensor.h"

namespace jackscrew {

// In a header, of what is no tensor.
inline constexpr const char* kSafetensorsMetadata = "__metadata__";
using SafetensorsMetadata = std::map<std::string, std::string>;

// Bytes per element of a safetensors dtype ("F32", "BF16", "F16", "I64" ...); 0 when it is unknown.
int64_t safetensors_dtype_size(std::string_view dtype);
// What safetensors calls a type; and the type that it calls so, nullopt where tensors have none.
const char* safetensors_dtype(DType type);
std::optional<DType> dtype_named(std::string_view dtype);
// The safetensors dtype of a format; null for formats without one. And the format of a dtype; null
// when weights cannot be read from it.
const char* safetensors_dtype(const Format& format);
const Format* format_of_dtype(std::string_view dtype);

struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;      // empty for a scalar
  std::span<const uint8_t> bytes;  // in the file's map, little-endian, of any alignment
};

// One mapped file. Construction checks everything that the header says; a header that is damaged,
// or that does not describe the rest of the file exactly, is Error(model) naming file and tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const fs::path& path);

  // In the order of their bytes. Valid for the life of this object.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  // Null when there is no such tensor.
  const SafetensorsEntry* find(std::string_view name) const;
  const fs::path& path() const { return file_.path(); }
  const MappedFile& map() const { return file_; }

  // True when `bytes` lie in this file's map.
  bool holds(std::span<const uint8_t> bytes) const;
  // Call when these bytes of the map are no longer needed: their pages may be dropped.
  void release(std::span<const uint8_t> bytes) const;

 private:
  MappedFile file_;
  std::vector<SafetensorsEntry> entries_;
  SafetensorsMetadata metadata_;
  std::map<std::string, size_t, std::less<>> index_;
};

// A tensor about to be written.
struct SafetensorsSpec {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  // Whether it stays in the file of the tensor before it: readers of a quantised weight want all of
  // its tensors in one.
  bool joins_previous = false;
};

// Appends the tensors of one weight, joined.
void append_joined(std::vector<SafetensorsSpec> parts, std::vector<SafetensorsSpec>& specs);

// A tensor with its bytes.
struct TensorBytes {
  SafetensorsSpec spec;
  std::vector<uint8_t> bytes;
};

// The sum of the tensors' bytes, and the size of the file that SafetensorsWriter writes for them.
// Both throw as its constructor does.
int64_t bytes_of(const std::vector<SafetensorsSpec>& tensors);
int64_t safetensors_bytes(const std::vector<SafetensorsSpec>& tensors,
                          const SafetensorsMetadata& metadata = {});

// Writes one file in a single pass: the header needs every tensor declared first, the bytes follow
// in declared order. Misuse (an unknown or repeated name, an unknown dtype, bytes out of order, too
// many or too few) and a failing disk are Error(generic).
class SafetensorsWriter {
 public:
  // `crc`, which must outlive the writer, is updated with every byte of the file; null: no
  // checksum. `metadata` is written besides "format".
  SafetensorsWriter(const fs::path& path, std::vector<SafetensorsSpec> tensors,
                    Crc32c* crc = nullptr, const SafetensorsMetadata& metadata = {});

  // Appends little-endian bytes to `name`: all of them, or the next chunk. The tensor before must
  // be complete.
  void write(std::string_view name, std::span<const uint8_t> bytes);
  // Checks that every tensor is complete and syncs the file. Without it the file is not usable.
  void close();

 private:
  void skip_complete();
  void put(std::span<const uint8_t> bytes);

  std::string where_;
  FileWriter file_;
  Crc32c* crc_;
  std::vector<SafetensorsSpec> tensors_;
  size_t current_ = 0;     // the tensor being written
  int64_t remaining_ = 0;  // bytes it still lacks
};

// Writes the weights of a model directory: `model.safetensors` when they fit into
// `max_shard_bytes`, otherwise `model-0000i-of-0000N.safetensors` with
// `model.safetensors.index.json`. Tensors that are joined and larger than a shard get one of their
// own. Rules and errors are those of SafetensorsWriter. Files of another model in the directory are
// left alone: write into a fresh one.
class ShardedSafetensorsWriter {
 public:
  static constexpr int64_t kDefaultShardBytes = 5'000'000'000;

  ShardedSafetensorsWriter(const fs::path& directory, std::vector<SafetensorsSpec> tensors,
                           int64_t max_shard_bytes = kDefaultShardBytes);

  // What the files take that such a writer writes. Throws as its constructor does.
  static FileSizes sizes(std::vector<SafetensorsSpec> tensors,
                         int64_t max_shard_bytes = kDefaultShardBytes);

  void write(std::string_view name, std::span<const uint8_t> bytes);
  // Completes the last shard and writes the index.
  void close();

 private:
  struct Shard {
    std::string file;
    std::vector<SafetensorsSpec> tensors;
  };
  static std::vector<Shard> cut(std::vector<SafetensorsSpec> tensors, int64_t max_shard_bytes);
  static std::string index_text(const std::vector<Shard>& shards);
  void open_shard(size_t index);

  fs::path directory_;
  std::vector<Shard> shards_;
  std::map<std::string, size_t, std::less<>> shard_of_;
  size_t current_ = 0;
  std::unique_ptr<SafetensorsWriter> writer_;  // of shard current_
};

// The weights of a Hugging Face model directory.
class SafetensorsSource : public WeightSource {
 public:
  // Opens model.safetensors, or every shard of model.safetensors.index.json, or if neither exists
  // every *.safetensors file (quantising programs choose names of their own, and may leave the
  // index of the original beside them). Throws Error(model) when there is none, a shard is missing,
  // the index names a tensor that its shard lacks, or two files have the same tensor.
  explicit SafetensorsSource(const fs::path& directory);

  // Throws Error(model) when the tensor has a dtype other than F32, BF16 or F16 and is not a weight
  // in a layout of quantised_layout.h either. The single tensors of such a weight cannot be found.
  const StoredTensor* find(std::string_view name) const override;
  std::vector<std::string> names() const override;
  void release(const StoredTensor& tensor) const override;
  // Whether the head is a weight of its own even if the configuration says that it is the embedding
  // (QuantisedLayout::rounds_tied_head).
  bool has_own_head() const { return has_own_head_; }
  // Of a tied model: where there is a head but no embedding, takes it as the embedding.
  void take_head_as_embedding();

 private:
  struct Slot {
    StoredTensor tensor;
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;  // null: a weight of several tensors
    std::optional<Error> problem = {};        // why weights cannot be read from it
  };
  void add(const SafetensorsFile& file, const SafetensorsEntry& entry);
  void join_quantised(const fs::path& directory);
  void open_index(const fs::path& directory, const fs::path& index);
  void open_all(const fs::path& directory);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Slot, std::less<>> slots_;
  bool has_own_head_ = false;
};

}  // namespace jackscrew
