// Values as bytes of a message between ranks, in native layout: all ranks run the same build.
#pragma once

#include <concepts>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace jackscrew {

// A struct whose members pass one after another, as `fields(value)` ties them (std::tie).
template <class T>
concept HasFields = requires(T& value) {
  fields(value);
};

// For a function `fields` that takes a T, constant or not.
template <class T, class Of>
concept Either = std::same_as<std::remove_const_t<T>, Of>;

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
  template <HasFields T>
  MessageWriter& put(const T& value) {
    std::apply([&](const auto&... each) { (put(each), ...); }, fields(value));
    return *this;
  }
  template <class T>
  requires(!std::is_trivially_copyable_v<T>) MessageWriter& put(const std::vector<T>& values) {
    put(values.size());
    for (const T& value : values) put(value);
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
  template <HasFields T>
  T get() {
    T value;
    std::apply([&](auto&... each) { (get_into(each), ...); }, fields(value));
    return value;
  }
  template <class T>
  requires(!std::is_trivially_copyable_v<T>) std::vector<T> get_vector() {
    std::vector<T> values;
    // No memory is taken for what is said to follow and may not be there.
    for (auto left = get<size_t>(); left > 0; --left) get_into(values.emplace_back());
    return values;
  }

 private:
  template <class T>
  void get_into(T& value) {
    value = get<T>();
  }
  template <class T>
  void get_into(std::vector<T>& values) {
    values = get_vector<T>();
  }
  void get_into(std::string& text) { text = get_text(); }
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
