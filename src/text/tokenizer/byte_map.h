// How vocabularies spell bytes. Byte-level ones use GPT-2's map between bytes and printable
// characters: printable Latin-1 maps to itself, the other bytes to U+0100 onwards (a space is
// U+0120). SentencePiece's have a token "<0x0A>" for each byte that no other token spells.
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

// The byte of a token such as "<0x0A>"; nullopt for any other token. Small letters count too: the
// decoders of Hugging Face's tokenizers take them.
std::optional<uint8_t> byte_of_token(std::string_view token);

}  // namespace jackscrew
