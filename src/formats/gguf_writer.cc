#include "formats/gguf_writer.h"

#include <bit>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/error.h"

namespace jackscrew {

namespace {

static_assert(std::endian::native == std::endian::little, "GGUF's bytes are little-endian");

template <class T>
void append(std::string& out, T value) {
  const auto* bytes = reinterpret_cast<const char*>(&value);
  out.append(bytes, sizeof value);
}

void append_text(std::string& out, std::string_view text) {
  append(out, static_cast<uint64_t>(text.size()));
  out += text;
}

std::string gguf_header(const GgufMetadata& metadata, const std::vector<GgufTensorSpec>& tensors) {
  std::string out = "GGUF";
  append(out, uint32_t{3});
  append(out, static_cast<uint64_t>(tensors.size()));
  append(out, metadata.count());
  out += metadata.bytes();
  int64_t offset = 0;
  for (const GgufTensorSpec& tensor : tensors) {
    append_text(out, tensor.name);
    append(out, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) {
      append(out, static_cast<uint64_t>(tensor.shape[i]));
    }
    append(out, tensor.type);
    append(out, static_cast<uint64_t>(offset));
    offset = round_up(checked_add(offset, tensor.bytes), kGgufAlignment);
  }
  out.resize(static_cast<size_t>(round_up(std::ssize(out), kGgufAlignment)), '\0');
  return out;
}

}  // namespace

void GgufMetadata::begin(const std::string& key, GgufType type) {
  append_text(bytes_, key);
  append(bytes_, static_cast<uint32_t>(type));
  ++count_;
}

void GgufMetadata::begin_array(const std::string& key, GgufType of, size_t count) {
  begin(key, GgufType::array);
  append(bytes_, static_cast<uint32_t>(of));
  append(bytes_, static_cast<uint64_t>(count));
}

void GgufMetadata::add_encoded(const std::string& key, std::string_view value) {
  append_text(bytes_, key);
  bytes_ += value;
  ++count_;
}

void GgufMetadata::add(const std::string& key, uint32_t value) {
  begin(key, GgufType::u32);
  append(bytes_, value);
}

void GgufMetadata::add(const std::string& key, float value) {
  begin(key, GgufType::f32);
  append(bytes_, value);
}

void GgufMetadata::add(const std::string& key, bool value) {
  begin(key, GgufType::boolean);
  append(bytes_, static_cast<uint8_t>(value ? 1 : 0));
}

void GgufMetadata::add(const std::string& key, std::string_view value) {
  begin(key, GgufType::string);
  append_text(bytes_, value);
}

void GgufMetadata::add(const std::string& key, const std::vector<std::string>& values) {
  begin_array(key, GgufType::string, values.size());
  for (const std::string& value : values) append_text(bytes_, value);
}

void GgufMetadata::add(const std::string& key, const std::vector<float>& values) {
  begin_array(key, GgufType::f32, values.size());
  for (const float value : values) append(bytes_, value);
}

void GgufMetadata::add(const std::string& key, const std::vector<int32_t>& values) {
  begin_array(key, GgufType::i32, values.size());
  for (const int32_t value : values) append(bytes_, value);
}

GgufWriter::GgufWriter(const fs::path& path, const GgufMetadata& metadata,
                       std::vector<GgufTensorSpec> tensors)
    : where_(path.string()), file_(path), tensors_(std::move(tensors)) {
  file_.write(gguf_header(metadata, tensors_));
}

int64_t GgufWriter::bytes(const GgufMetadata& metadata,
                          const std::vector<GgufTensorSpec>& tensors) {
  int64_t bytes = std::ssize(gguf_header(metadata, tensors));
  for (const GgufTensorSpec& tensor : tensors) {
    bytes = checked_add(bytes, round_up(tensor.bytes, kGgufAlignment));
  }
  return bytes;
}

void GgufWriter::write(std::string_view name, std::span<const uint8_t> bytes) {
  if (current_ == tensors_.size() || tensors_[current_].name != name) {
    fail(ErrorKind::generic, "{}: bytes for tensor {} where {} is due", where_, name,
         current_ == tensors_.size() ? std::string("nothing more") : tensors_[current_].name);
  }
  const int64_t lacks = tensors_[current_].bytes - written_;
  if (std::ssize(bytes) > lacks) {
    fail(ErrorKind::generic, "{}: {} bytes for tensor {}, which lacks {}", where_, bytes.size(),
         name, lacks);
  }
  file_.write(bytes.data(), bytes.size());
  written_ += std::ssize(bytes);
  if (written_ < tensors_[current_].bytes) return;
  const std::string padding(static_cast<size_t>(round_up(written_, kGgufAlignment) - written_),
                            '\0');
  file_.write(padding);
  ++current_;
  written_ = 0;
}

void GgufWriter::close() {
  if (current_ != tensors_.size()) {
    fail(ErrorKind::generic, "{}: tensor {} lacks {} bytes", where_, tensors_[current_].name,
         tensors_[current_].bytes - written_);
  }
  file_.close();
}

}  // namespace jackscrew
