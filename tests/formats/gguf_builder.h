// Writes GGUF files, good ones and malformed ones, for the tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"

namespace jackscrew {

class GgufBuilder {
 public:
  template <typename T>
  static std::string raw(T value) {
    std::string out(sizeof value, '\0');
    std::memcpy(out.data(), &value, sizeof value);
    return out;
  }
  static std::string counted(std::string_view text) {
    return raw<uint64_t>(text.size()) + std::string(text);
  }
  static std::string number(GgufType type) { return raw(static_cast<uint32_t>(type)); }

  // A metadata entry with its value given as bytes.
  void entry(const std::string& key, GgufType type, const std::string& bytes) {
    values_ += counted(key) + number(type) + bytes;
    ++value_count_;
  }
  void u32(const std::string& key, uint32_t value) { entry(key, GgufType::u32, raw(value)); }
  void f32(const std::string& key, float value) { entry(key, GgufType::f32, raw(value)); }
  void boolean(const std::string& key, bool value) {
    entry(key, GgufType::boolean, raw<uint8_t>(value ? 1 : 0));
  }
  void text(const std::string& key, std::string_view value) {
    entry(key, GgufType::string, counted(value));
  }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    std::string bytes = number(GgufType::string) + raw<uint64_t>(values.size());
    for (const std::string& value : values) bytes += counted(value);
    entry(key, GgufType::array, bytes);
  }
  template <typename T>
  void array(const std::string& key, GgufType type, const std::vector<T>& values) {
    std::string bytes = number(type) + raw<uint64_t>(values.size());
    for (const T value : values) bytes += raw(value);
    entry(key, GgufType::array, bytes);
  }

  // `extents` as ggml has them: innermost first.
  void tensor(const std::string& name, uint32_t type, const std::vector<uint64_t>& extents,
              const std::string& bytes) {
    tensor_at(name, type, extents, data_.size());
    data_ += bytes;
    data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
  }
  void tensor_at(const std::string& name, uint32_t type, const std::vector<uint64_t>& extents,
                 uint64_t offset) {
    tensors_ += counted(name) + raw(static_cast<uint32_t>(extents.size()));
    for (const uint64_t extent : extents) tensors_ += raw(extent);
    tensors_ += raw(type) + raw(offset);
    ++tensor_count_;
  }

  std::string header() const {
    std::string out = "GGUF" + raw(version) + raw(tensor_count_ + extra_tensors) +
                      raw(value_count_ + extra_values) + values_ + tensors_;
    out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out;
  }
  std::string build() const { return header() + data_; }

  uint32_t version = 3;
  size_t alignment = 32;
  uint64_t extra_tensors = 0;  // added to the count in the header alone
  uint64_t extra_values = 0;

 private:
  std::string values_;
  std::string tensors_;
  std::string data_;
  uint64_t value_count_ = 0;
  uint64_t tensor_count_ = 0;
};

// The hyper-parameters of a Llama of one layer.
inline GgufBuilder gguf_llama_shape(uint32_t hidden_size, uint32_t intermediate_size,
                                    uint32_t heads) {
  GgufBuilder out;
  out.text("general.architecture", "llama");
  out.u32("llama.block_count", 1);
  out.u32("llama.context_length", 64);
  out.u32("llama.embedding_length", hidden_size);
  out.u32("llama.feed_forward_length", intermediate_size);
  out.u32("llama.attention.head_count", heads);
  out.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  return out;
}

}  // namespace jackscrew
