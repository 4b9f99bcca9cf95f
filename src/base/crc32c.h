// CRC-32C (Castagnoli), the checksum of TFRecord files (RFC 3720, appendix B.4).
#pragma once

#include <cstdint>
#include <string_view>

namespace jackscrew {

uint32_t crc32c(std::string_view data);

}  // namespace jackscrew
