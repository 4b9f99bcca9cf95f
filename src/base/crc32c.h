// CRC-32C (Castagnoli), the checksum of TFRecord files and checkpoints (RFC 3720, appendix B.4).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace jackscrew {

// The checksum of bytes that come piece by piece.
class Crc32c {
 public:
  void add(std::span<const uint8_t> bytes);
  void add(std::string_view text);
  // The checksum of all bytes added so far.
  uint32_t value() const { return ~state_; }

 private:
  uint32_t state_ = 0xFFFFFFFFu;
};

uint32_t crc32c(std::span<const uint8_t> bytes);
uint32_t crc32c(std::string_view text);

}  // namespace jackscrew
