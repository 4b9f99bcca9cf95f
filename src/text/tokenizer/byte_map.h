// GPT-2's map between bytes and printable characters, used to spell byte-level vocabularies:
// printable Latin-1 maps to itself, the other bytes to U+0100 onwards (a space is U+0120).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace jackscrew {

// The UTF-8 of the character that `byte` maps to.
std::string mapped_character(uint8_t byte);

std::string map_bytes(std::string_view bytes);

// The bytes that a vocabulary entry spells; nullopt where it has a character outside the map.
std::optional<std::string> unmap_bytes(std::string_view token);

}  // namespace jackscrew
