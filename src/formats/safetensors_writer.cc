#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "formats/json_text.h"
#include "formats/safetensors.h"
#include "formats/shape.h"

namespace jackscrew {

namespace {

using nlohmann::json;

int64_t spec_bytes(const SafetensorsSpec& spec) {
  const int64_t element = safetensors_dtype_size(spec.dtype);
  if (element == 0) {
    fail(ErrorKind::generic, "tensor {}: unknown safetensors dtype {}", spec.name, spec.dtype);
  }
  const std::optional<int64_t> count = shape_elements(spec.shape);
  if (!count) fail(ErrorKind::generic, "tensor {}: shape {}", spec.name, shape_text(spec.shape));
  return checked_mul(*count, element);
}

// The length prefix and the header, padded so that the data begin at a multiple of 8 bytes.
std::string header_bytes(const std::vector<SafetensorsSpec>& tensors,
                         const SafetensorsMetadata& metadata) {
  json header = {{kSafetensorsMetadata, {{"format", "pt"}}}};
  for (const auto& [key, text] : metadata) header[kSafetensorsMetadata][key] = text;
  int64_t offset = 0;
  for (const SafetensorsSpec& spec : tensors) {
    if (spec.name.empty() || header.contains(spec.name)) {
      fail(ErrorKind::generic, "tensor name \"{}\" is reserved or declared twice", spec.name);
    }
    const int64_t end = checked_add(offset, spec_bytes(spec));
    header[spec.name] = {
        {"dtype", spec.dtype}, {"shape", spec.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = dump_json(header, -1);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string out;
  for (size_t i = 0; i < 8; ++i) out += static_cast<char>((text.size() >> (8 * i)) & 0xFF);
  return out + text;
}

}  // namespace

int64_t bytes_of(const std::vector<SafetensorsSpec>& tensors) {
  int64_t bytes = 0;
  for (const SafetensorsSpec& spec : tensors) bytes = checked_add(bytes, spec_bytes(spec));
  return bytes;
}

int64_t safetensors_bytes(const std::vector<SafetensorsSpec>& tensors,
                          const SafetensorsMetadata& metadata) {
  return checked_add(std::ssize(header_bytes(tensors, metadata)), bytes_of(tensors));
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, std::vector<SafetensorsSpec> tensors,
                                     Crc32c* crc, const SafetensorsMetadata& metadata)
    : where_(path.string()), file_(path), crc_(crc), tensors_(std::move(tensors)) {
  const std::string header = header_bytes(tensors_, metadata);
  put({reinterpret_cast<const uint8_t*>(header.data()), header.size()});
  if (!tensors_.empty()) remaining_ = spec_bytes(tensors_[0]);
}

void SafetensorsWriter::put(std::span<const uint8_t> bytes) {
  file_.write(bytes.data(), bytes.size());
  if (crc_ != nullptr) crc_->add(bytes);
}

// Moves past complete tensors, empty ones included.
void SafetensorsWriter::skip_complete() {
  while (current_ < tensors_.size() && remaining_ == 0) {
    ++current_;
    remaining_ = current_ < tensors_.size() ? spec_bytes(tensors_[current_]) : 0;
  }
}

void SafetensorsWriter::write(std::string_view name, std::span<const uint8_t> bytes) {
  if (bytes.empty()) return;
  skip_complete();
  if (current_ == tensors_.size() || tensors_[current_].name != name) {
    fail(ErrorKind::generic, "{}: bytes for tensor {} where {} is due", where_, name,
         current_ == tensors_.size() ? std::string("nothing more") : tensors_[current_].name);
  }
  if (bytes.size() > static_cast<size_t>(remaining_)) {
    fail(ErrorKind::generic, "{}: {} bytes for tensor {}, which lacks {}", where_, bytes.size(),
         name, remaining_);
  }
  put(bytes);
  remaining_ -= static_cast<int64_t>(bytes.size());
}

void SafetensorsWriter::close() {
  skip_complete();
  if (current_ != tensors_.size()) {
    fail(ErrorKind::generic, "{}: tensor {} lacks {} bytes", where_, tensors_[current_].name,
         remaining_);
  }
  file_.close();
}

void append_joined(std::vector<SafetensorsSpec> parts, std::vector<SafetensorsSpec>& specs) {
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].joins_previous = i > 0;
    specs.push_back(std::move(parts[i]));
  }
}

ShardedSafetensorsWriter::ShardedSafetensorsWriter(const fs::path& directory,
                                                   std::vector<SafetensorsSpec> tensors,
                                                   int64_t max_shard_bytes)
    : directory_(directory), shards_(cut(std::move(tensors), max_shard_bytes)) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (const SafetensorsSpec& spec : shards_[i].tensors) {
      if (!shard_of_.emplace(spec.name, i).second) {
        fail(ErrorKind::generic, "tensor name \"{}\" is declared twice", spec.name);
      }
    }
  }
  open_shard(0);
}

std::vector<ShardedSafetensorsWriter::Shard> ShardedSafetensorsWriter::cut(
    std::vector<SafetensorsSpec> tensors, int64_t max_shard_bytes) {
  std::vector<Shard> shards(1);
  int64_t shard_bytes = 0;
  for (size_t begin = 0, end = 0; begin < tensors.size(); begin = end) {
    int64_t bytes = spec_bytes(tensors[begin]);
    for (end = begin + 1; end < tensors.size() && tensors[end].joins_previous; ++end) {
      bytes = checked_add(bytes, spec_bytes(tensors[end]));
    }
    if (!shards.back().tensors.empty() && checked_add(shard_bytes, bytes) > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes = checked_add(shard_bytes, bytes);
    for (size_t i = begin; i < end; ++i) {
      shards.back().tensors.push_back(std::move(tensors[i]));
    }
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1
                         ? std::string("model.safetensors")
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

// The text of the index; empty where one file has everything.
std::string ShardedSafetensorsWriter::index_text(const std::vector<Shard>& shards) {
  if (shards.size() == 1) return {};
  int64_t total_bytes = 0;
  json weight_map = json::object();
  for (const Shard& shard : shards) {
    total_bytes = checked_add(total_bytes, bytes_of(shard.tensors));
    for (const SafetensorsSpec& spec : shard.tensors) weight_map[spec.name] = shard.file;
  }
  const json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  return dump_json(index) + "\n";
}

FileSizes ShardedSafetensorsWriter::sizes(std::vector<SafetensorsSpec> tensors,
                                          int64_t max_shard_bytes) {
  const std::vector<Shard> shards = cut(std::move(tensors), max_shard_bytes);
  FileSizes sizes;
  sizes.add(std::ssize(index_text(shards)));
  for (const Shard& shard : shards) sizes.add(safetensors_bytes(shard.tensors));
  return sizes;
}

void ShardedSafetensorsWriter::open_shard(size_t index) {
  current_ = index;
  writer_ =
      std::make_unique<SafetensorsWriter>(directory_ / shards_[index].file, shards_[index].tensors);
}

void ShardedSafetensorsWriter::write(std::string_view name, std::span<const uint8_t> bytes) {
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end() || found->second < current_) {
    fail(ErrorKind::generic, "{}: bytes for tensor {}, which is not declared or already written",
         directory_.string(), name);
  }
  while (current_ < found->second) {
    writer_->close();
    open_shard(current_ + 1);
  }
  writer_->write(name, bytes);
}

void ShardedSafetensorsWriter::close() {
  writer_->close();
  // Shards that have only empty tensors may remain.
  while (current_ + 1 < shards_.size()) {
    open_shard(current_ + 1);
    writer_->close();
  }
  if (const std::string index = index_text(shards_); !index.empty()) {
    write_text_atomic(directory_ / "model.safetensors.index.json", index);
  }
}

}  // namespace jackscrew
