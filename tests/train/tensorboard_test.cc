#include "train/tensorboard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"

namespace jackscrew {
namespace {

// CRC-32C a bit at a time, independent of the table in base/crc32c.cc.
uint32_t slow_masked_crc(const std::string& data) {
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
std::vector<Field> decode(const std::string& message) {
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
std::vector<std::string> frames(const fs::path& path) {
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

class TensorBoardTest : public ::testing::Test {
 protected:
  TensorBoardTest()
      : directory_(fs::temp_directory_path() / ("jackscrew_tb_" + std::to_string(::getpid()))) {
    fs::create_directories(directory_);
  }
  ~TensorBoardTest() override { fs::remove_all(directory_); }

  fs::path directory_;
};

TEST_F(TensorBoardTest, FramesHoldVersionAndScalars) {
  TensorBoardWriter writer(directory_);
  writer.scalar("train/loss", 300, 1.25f);
  const auto records = frames(writer.path());
  ASSERT_EQ(records.size(), 2u);
  const auto version = decode(records[0]);
  ASSERT_EQ(version.size(), 3u);
  EXPECT_EQ(version[2].number, 3u);
  EXPECT_EQ(version[2].bytes, "brain.Event:2");
  const auto event = decode(records[1]);
  ASSERT_EQ(event.size(), 3u);
  EXPECT_EQ(event[0].number, 1u);
  EXPECT_GT(from_bytes<double>(event[0].bytes), 1.6e9);
  EXPECT_EQ(event[1].number, 2u);
  EXPECT_EQ(event[1].varint, 300u);
  EXPECT_EQ(event[2].number, 5u);
  const auto summary = decode(event[2].bytes);
  ASSERT_EQ(summary.size(), 1u);
  EXPECT_EQ(summary[0].number, 1u);
  const auto value = decode(summary[0].bytes);
  ASSERT_EQ(value.size(), 2u);
  EXPECT_EQ(value[0].number, 1u);
  EXPECT_EQ(value[0].bytes, "train/loss");
  EXPECT_EQ(value[1].number, 2u);
  EXPECT_EQ(from_bytes<float>(value[1].bytes), 1.25f);
}

TEST_F(TensorBoardTest, AResumedRunWritesAFileThatSortsLaterAndRestarts) {
  const TensorBoardWriter first(directory_);
  const TensorBoardWriter second(directory_, 200);
  EXPECT_LT(first.path().string(), second.path().string());
  const auto records = frames(second.path());
  ASSERT_EQ(records.size(), 2u);
  const auto restart = decode(records[1]);
  ASSERT_EQ(restart.size(), 3u);
  EXPECT_EQ(restart[1].varint, 201u);
  EXPECT_EQ(restart[2].number, 7u);
  const auto session = decode(restart[2].bytes);
  ASSERT_EQ(session.size(), 1u);
  EXPECT_EQ(session[0].number, 1u);
  EXPECT_EQ(session[0].varint, 1u);
}

TEST_F(TensorBoardTest, AMissingDirectoryIsAnError) {
  EXPECT_THROW(TensorBoardWriter(directory_ / "missing"), Error);
}

}  // namespace
}  // namespace jackscrew
