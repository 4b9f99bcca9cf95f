#include "report/tensorboard.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <vector>

#include "base/crc32c.h"
#include "base/directory.h"
#include "base/error.h"
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

// TFRecord stores checksums rotated and offset, because a CRC over data that contains its own CRC
// is weak.
uint32_t masked_crc(std::string_view data) {
  return std::rotr(crc32c(data), 15) + 0xA282EAD8u;
}

constexpr const char* kPrefix = "events.out.tfevents.";
constexpr const char* kWriter = ".jackscrew.";

// The program's event files in the order in which TensorBoard reads them: by name.
std::vector<fs::path> event_files(const fs::path& directory) {
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry : entries_of(directory)) {
    const std::string name = entry.path().filename().string();
    const bool is_ours = name.starts_with(kPrefix) && name.find(kWriter) != std::string::npos;
    if (is_ours) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

fs::path new_event_path(const fs::path& directory) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  return directory / fmt::format("{}{:010}{}0000", kPrefix, seconds, kWriter);
}

template <typename T>
std::optional<T> get_little_endian(std::string_view bytes, size_t at) {
  if (bytes.size() < sizeof(T) || at > bytes.size() - sizeof(T)) return std::nullopt;
  T value = 0;
  for (size_t byte = sizeof(T); byte-- > 0;) {
    value = static_cast<T>((value << 8) | static_cast<uint8_t>(bytes[at + byte]));
  }
  return value;
}

// The step of an event that begins like event_header()'s; nullopt for others.
std::optional<uint64_t> step_of(std::string_view event) {
  constexpr size_t kStepKey = 1 + sizeof(double);
  if (event.size() <= kStepKey || event[0] != ((1 << 3) | kFixed64) ||
      event[kStepKey] != (2 << 3)) {
    return std::nullopt;
  }
  uint64_t step = 0;
  for (size_t at = kStepKey + 1, shift = 0; at < event.size() && shift < 64; ++at, shift += 7) {
    const auto byte = static_cast<uint8_t>(event[at]);
    step |= static_cast<uint64_t>(byte & 0x7Fu) << shift;
    if (byte < 0x80u) return step;
  }
  return std::nullopt;
}

// The length in bytes of the valid records at the start of an event file, up to the first one
// beyond step `last`.
size_t kept_bytes(std::string_view file, uint64_t last) {
  constexpr size_t kHead = sizeof(uint64_t) + sizeof(uint32_t);
  for (size_t at = 0;;) {
    const auto size = get_little_endian<uint64_t>(file, at);
    const auto head_crc = get_little_endian<uint32_t>(file, at + sizeof(uint64_t));
    if (!size || !head_crc || *head_crc != masked_crc(file.substr(at, sizeof(uint64_t)))) return at;
    if (*size > file.size() - at - kHead) return at;
    const std::string_view event = file.substr(at + kHead, static_cast<size_t>(*size));
    const size_t end = at + kHead + event.size();
    const auto crc = get_little_endian<uint32_t>(file, end);
    const auto step = step_of(event);
    if (!crc || *crc != masked_crc(event) || !step || *step > last) return at;
    at = end + sizeof(uint32_t);
  }
}

// Prepares the file to write to, and returns its path.
fs::path begin_events(const fs::path& directory, std::optional<int64_t> resumed_step) {
  const std::vector<fs::path> paths = event_files(directory);
  std::error_code error;
  if (!resumed_step) {
    for (const fs::path& path : paths) fs::remove(path, error);
  }
  if (!resumed_step || paths.empty()) return new_event_path(directory);
  const fs::path& path = paths.back();
  size_t kept = 0;
  {
    const MappedFile file(path);
    const auto bytes = file.bytes();
    kept = kept_bytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                      static_cast<uint64_t>(*resumed_step));
  }
  fs::resize_file(path, kept, error);
  if (error) fail(ErrorKind::generic, "cannot cut {}: {}", path.string(), error.message());
  return path;
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const fs::path& directory, std::optional<int64_t> resumed_step)
    : file_(begin_events(directory, resumed_step)) {
  if (file_.began_empty()) {
    std::string version = event_header(0);
    put_bytes(version, 3, "brain.Event:2");  // Event.file_version
    write_record(version);
  }
  if (!resumed_step) return;
  std::string restart = event_header(*resumed_step + 1);
  std::string session;
  put_key(session, 1, kVarint);    // SessionLog.status
  put_varint(session, 1);          // START: earlier points from this step on are to be forgotten
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
  file_.append(frame);
}

}  // namespace jackscrew
