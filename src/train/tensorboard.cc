#include "train/tensorboard.h"

#include <fmt/format.h>

#include <bit>
#include <chrono>

#include "base/crc32c.h"
#include "base/half.h"

namespace jackscrew {

namespace {

template <typename T>
void put_little_endian(std::string& out, T value) {
  for (size_t byte = 0; byte < sizeof(T); ++byte) {
    out.push_back(static_cast<char>((value >> (8 * byte)) & 0xFFu));
  }
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80u; value >>= 7) out.push_back(static_cast<char>((value & 0x7Fu) | 0x80u));
  out.push_back(static_cast<char>(value));
}

// Protobuf wire types.
constexpr uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

void put_key(std::string& out, uint32_t field, uint32_t wire_type) {
  put_varint(out, (field << 3) | wire_type);
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// tensorflow.Event up to its payload: wall_time = 1, step = 2.
std::string event_header(int64_t step) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  put_key(event, 1, kFixed64);
  put_little_endian(event, std::bit_cast<uint64_t>(now.count()));
  put_key(event, 2, kVarint);
  put_varint(event, static_cast<uint64_t>(step));
  return event;
}

// TFRecord stores checksums rotated and offset, because data that contains its own CRC is weak.
uint32_t masked_crc(std::string_view data) {
  return std::rotr(crc32c(data), 15) + 0xA282EAD8u;
}

// A name that no file of the directory has; TensorBoard reads files in the order of their names.
fs::path new_event_path(const fs::path& directory) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  for (int serial = 0;; ++serial) {
    fs::path path =
        directory / fmt::format("events.out.tfevents.{:010}.jackscrew.{:04}", seconds, serial);
    if (!fs::exists(path)) return path;
  }
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const fs::path& directory, std::optional<int64_t> resumed_step)
    : path_(new_event_path(directory)), writer_(path_) {
  std::string version = event_header(0);
  put_bytes(version, 3, "brain.Event:2");  // Event.file_version
  write_record(version);
  if (!resumed_step) return;
  std::string restart = event_header(*resumed_step + 1);
  std::string session;
  put_key(session, 1, kVarint);    // SessionLog.status
  put_varint(session, 1);          // START: points at this step and beyond are from a run given up
  put_bytes(restart, 7, session);  // Event.session_log
  write_record(restart);
}

void TensorBoardWriter::scalar(std::string_view tag, int64_t step, float value) {
  std::string point;
  put_bytes(point, 1, tag);     // Summary.Value.tag
  put_key(point, 2, kFixed32);  // Summary.Value.simple_value
  put_little_endian(point, float_bits(value));
  std::string summary;
  put_bytes(summary, 1, point);  // Summary.value
  std::string event = event_header(step);
  put_bytes(event, 5, summary);  // Event.summary
  write_record(event);
}

void TensorBoardWriter::write_record(std::string_view payload) {
  std::string frame;
  put_little_endian(frame, static_cast<uint64_t>(payload.size()));
  put_little_endian(frame, masked_crc(frame));
  frame += payload;
  put_little_endian(frame, masked_crc(payload));
  writer_.write(frame);
  writer_.flush();
}

}  // namespace jackscrew
