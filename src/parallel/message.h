// Values as bytes of a message between ranks, in native layout: all ranks run the same build.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace jackscrew {

class MessageWriter {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T> MessageWriter& put(const T& value) {
    append(&value, sizeof value);
    return *this;
  }
  template <class T>
  requires std::is_trivially_copyable_v<T> MessageWriter& put(const std::vector<T>& values) {
    put(values.size());
    append(values.data(), values.size() * sizeof(T));
    return *this;
  }
  MessageWriter& put(const std::string& text) {
    put(text.size());
    append(text.data(), text.size());
    return *this;
  }
  std::span<const uint8_t> bytes() const { return bytes_; }
  // Takes the memory of so many bytes more: otherwise up to twice as much is taken as is put.
  void reserve(size_t more) { bytes_.reserve(bytes_.size() + more); }

 private:
  void append(const void* data, size_t size) {
    const size_t end = bytes_.size();
    bytes_.resize(end + size);
    if (size > 0) std::memcpy(bytes_.data() + end, data, size);
  }

  std::vector<uint8_t> bytes_;
};

// Reads the values in the order in which they were put. Throws Error(device) where a message ends
// too early.
class MessageReader {
 public:
  // Of bytes that outlive it, or of its own.
  explicit MessageReader(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  explicit MessageReader(std::vector<uint8_t>&& bytes) : own_(std::move(bytes)), bytes_(own_) {}
  MessageReader(const MessageReader&) = delete;
  MessageReader& operator=(const MessageReader&) = delete;

  template <class T>
  requires std::is_trivially_copyable_v<T> T get() {
    T value;
    std::memcpy(&value, take(sizeof value, 1).data(), sizeof value);
    return value;
  }
  template <class T>
  requires std::is_trivially_copyable_v<T> std::vector<T> get_vector() {
    const auto count = get<size_t>();
    const auto from = take(count, sizeof(T));
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), from.data(), from.size());
    return values;
  }
  std::string get_text() {
    const auto from = take(get<size_t>(), 1);
    return {from.begin(), from.end()};
  }

 private:
  std::span<const uint8_t> take(size_t count, size_t size) {
    if (count > bytes_.size() / size) {
      fail(ErrorKind::device, "a message between ranks ends too early");
    }
    const auto taken = bytes_.first(count * size);
    bytes_ = bytes_.subspan(count * size);
    return taken;
  }

  std::vector<uint8_t> own_;
  std::span<const uint8_t> bytes_;
};

}  // namespace jackscrew
