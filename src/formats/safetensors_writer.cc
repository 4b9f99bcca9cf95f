#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>
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

// Gives the text of the header in pieces, with the bytes that dump_json() makes of its tree: its
// members by name. The tree itself would take 2 KiB and more for every tensor, which nobody books.
void give_header(const std::vector<SafetensorsSpec>& tensors, const SafetensorsMetadata& metadata,
                 const std::function<void(std::string_view)>& take) {
  struct Member {
    std::string_view name;
    const SafetensorsSpec* spec;  // null: the metadata
    int64_t begin, end;           // of the tensor's bytes
  };
  std::vector<Member> members = {{kSafetensorsMetadata, nullptr, 0, 0}};
  members.reserve(tensors.size() + 1);
  int64_t offset = 0;
  for (const SafetensorsSpec& spec : tensors) {
    const int64_t end = checked_add(offset, spec_bytes(spec));
    members.push_back({spec.name, &spec, offset, end});
    offset = end;
  }
  std::ranges::sort(members, {}, &Member::name);
  std::optional<std::string_view> previous;
  for (const Member& member : members) {
    if (member.name.empty() || member.name == previous) {
      fail(ErrorKind::generic, "tensor name \"{}\" is reserved or declared twice", member.name);
    }
    take(previous ? "," : "{");
    previous = member.name;
    take(dump_json(json(member.name), -1));
    if (member.spec == nullptr) {
      json object = json::object();
      object["format"] = "pt";
      for (const auto& [key, text] : metadata) object[key] = text;
      take(":" + dump_json(object, -1));
      continue;
    }
    take(fmt::format(R"(:{{"data_offsets":[{},{}],"dtype":"{}","shape":[{}]}})", member.begin,
                     member.end, member.spec->dtype, fmt::join(member.spec->shape, ",")));
  }
  take("}");
}

int64_t header_size(const std::vector<SafetensorsSpec>& tensors,
                    const SafetensorsMetadata& metadata) {
  int64_t size = 0;
  give_header(tensors, metadata, [&](std::string_view piece) { size += std::ssize(piece); });
  return size;
}

// The header is padded so that the data begin at a multiple of 8 bytes.
int64_t padded(int64_t header) {
  return (header + 7) / 8 * 8;
}

constexpr int64_t kPrefix = 8;  // the bytes of the header's length

}  // namespace

int64_t bytes_of(const std::vector<SafetensorsSpec>& tensors) {
  int64_t bytes = 0;
  for (const SafetensorsSpec& spec : tensors) bytes = checked_add(bytes, spec_bytes(spec));
  return bytes;
}

int64_t safetensors_bytes(const std::vector<SafetensorsSpec>& tensors,
                          const SafetensorsMetadata& metadata) {
  return checked_add(kPrefix + padded(header_size(tensors, metadata)), bytes_of(tensors));
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, std::vector<SafetensorsSpec> tensors,
                                     Crc32c* crc, const SafetensorsMetadata& metadata)
    : where_(path.string()), file_(path), crc_(crc), tensors_(std::move(tensors)) {
  const int64_t size = header_size(tensors_, metadata);
  const auto put_text = [&](std::string_view text) {
    put({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  };
  const int64_t length = padded(size);
  std::string prefix;
  for (int64_t i = 0; i < kPrefix; ++i) prefix += static_cast<char>((length >> (8 * i)) & 0xFF);
  put_text(prefix);
  give_header(tensors_, metadata, put_text);
  put_text(std::string(static_cast<size_t>(length - size), ' '));
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
