// Reads TensorBoard event files, independently of the code that writes them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"

namespace jackscrew {

// CRC-32C a bit at a time, independent of the table in base/crc32c.cc.
inline uint32_t slow_masked_crc(const std::string& data) {
  uint32_t crc = ~0u;
  for (const char c : data) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

struct Field {
  uint64_t number = 0;
  uint64_t varint = 0;
  std::string bytes;  // of fixed and length-delimited fields
};

// A plain protobuf reader: the fields of a message in order.
inline std::vector<Field> decode(const std::string& message) {
  std::vector<Field> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(message.at(at++));
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
  };
  while (at < message.size()) {
    const uint64_t key = varint();
    Field field;
    field.number = key >> 3;
    if ((key & 7) == 0) {
      field.varint = varint();
    } else {
      const uint64_t size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : varint();
      EXPECT_LE(at + size, message.size());
      field.bytes = message.substr(at, size);
      at += size;
    }
    fields.push_back(field);
  }
  return fields;
}

template <typename T>
T from_bytes(const std::string& bytes) {
  T value{};
  EXPECT_EQ(bytes.size(), sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// Payloads of a TFRecord file, both checksums of every frame checked.
inline std::vector<std::string> frames(const fs::path& path) {
  const std::string text = read_text(path);
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const std::string head = text.substr(at, 8);
    const auto size = from_bytes<uint64_t>(head);
    EXPECT_EQ(from_bytes<uint32_t>(text.substr(at + 8, 4)), slow_masked_crc(head));
    out.push_back(text.substr(at + 12, size));
    EXPECT_EQ(from_bytes<uint32_t>(text.substr(at + 12 + size, 4)), slow_masked_crc(out.back()));
    at += 16 + size;
  }
  return out;
}

// The values of one tag by step, over all event files of a directory; later files win.
inline std::map<int64_t, float> scalars(const fs::path& directory, const std::string& tag) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("events.out.tfevents.")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::map<int64_t, float> values;
  for (const fs::path& file : files) {
    for (const std::string& frame : frames(file)) {
      int64_t step = 0;
      for (const Field& field : decode(frame)) {
        if (field.number == 2) step = static_cast<int64_t>(field.varint);
        if (field.number != 5) continue;                         // Event.summary
        for (const Field& value : decode(field.bytes)) {         // Summary.value
          const std::vector<Field> parts = decode(value.bytes);  // tag, simple_value
          if (parts.size() == 2 && parts[0].bytes == tag) {
            values[step] = from_bytes<float>(parts[1].bytes);
          }
        }
      }
    }
  }
  return values;
}

}  // namespace jackscrew
