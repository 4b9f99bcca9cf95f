#include "parallel/transport.h"

#include <array>

#include "base/error.h"

namespace jackscrew {

namespace {

using SizeBytes = std::array<uint8_t, 8>;  // little-endian

SizeBytes encode_size(uint64_t size) {
  SizeBytes out;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(size >> (8 * i));
  return out;
}

uint64_t decode_size(const SizeBytes& bytes) {
  uint64_t size = 0;
  for (size_t i = 0; i < bytes.size(); ++i) size |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return size;
}

}  // namespace

void check_rank(int rank, int ranks) {
  if (rank < 0 || rank >= ranks) fail(ErrorKind::generic, "no rank {} among {}", rank, ranks);
}

void send_now(Transport& transport, int to, Tag tag, std::span<const uint8_t> bytes) {
  transport.wait(std::array{transport.send(to, tag, bytes)});
}

void receive_now(Transport& transport, int from, Tag tag, std::span<uint8_t> bytes) {
  transport.wait(std::array{transport.receive(from, tag, bytes)});
}

void send_sized(Transport& transport, int to, Tag tag, std::span<const uint8_t> bytes) {
  const SizeBytes size = encode_size(bytes.size());
  transport.wait(std::array{transport.send(to, tag, size), transport.send(to, tag, bytes)});
}

std::vector<uint8_t> receive_sized(Transport& transport, int from, Tag tag, int64_t most) {
  SizeBytes encoded;
  receive_now(transport, from, tag, encoded);
  const uint64_t size = decode_size(encoded);
  if (most < 0 || size > static_cast<uint64_t>(most)) {
    fail(ErrorKind::device,
         "rank {} on {} announces a message of {} bytes, more than the {} that it may have", from,
         transport.host(from), size, most);
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(size));
  receive_now(transport, from, tag, bytes);
  return bytes;
}

}  // namespace jackscrew
