// Small helpers on strings: nearest name, human-readable sizes, parsing of numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jackscrew {

// The candidate with the smallest edit distance to `name`, or nullopt when none is near enough to
// be a plausible slip (distance <= 1 + length / 4, and less than the whole name). Capitals count as
// small letters.
std::optional<std::string> nearest_name(std::string_view name,
                                        std::span<const std::string> candidates);

// "12.30 GiB", "512.0 MiB", "17 B".
std::string human_bytes(int64_t bytes);
// The same for one of two sizes that are compared: "12.30 GiB (13207024435 B)" where they differ
// and would read alike.
std::string human_bytes(int64_t bytes, int64_t compared_to);

// "134.5M", "35.2k", "812".
std::string human_count(int64_t count);

// "1 token", "2 tokens".
std::string counted(int64_t count, std::string_view noun);
// "1 copy", "2 copies".
std::string counted(int64_t count, std::string_view noun, std::string_view plural);

// "16GiB", "800 MB", "4096B" -> bytes. nullopt when it is not a size; a number without a unit is
// none, since people mean GiB by it as often as bytes.
std::optional<int64_t> parse_bytes(std::string_view text);

// "nan" without its meaningless sign, else as fmt prints it.
std::string plain_number(double value);

// "1h12m", "3m05s", "12s".
std::string human_duration(double seconds);

// Lowers ASCII letters only.
std::string lower_case(std::string_view text);

// Whether a text has nothing but space.
bool is_blank(std::string_view text);

// Whole-string parses; nullopt when anything is left over.
std::optional<int64_t> parse_int(std::string_view text);
std::optional<double> parse_double(std::string_view text);
std::optional<bool> parse_bool(std::string_view text);

// Spells out invisible characters ("\\n", "\\u001b", "\\u202e"): controls, line ends, marks of the
// direction of writing. For untrusted text that must stay one line, move no cursor and read as it
// is.
std::string one_line(std::string_view text);
// Replaces the same characters, except line feeds and tabs, by U+FFFD: for text to be looked at.
std::string without_controls(std::string_view text);

// Whether it looks like a repository of a hub, ORG/NAME, and not like a path; in a directory that
// is here it is a path.
bool is_repository_name(std::string_view name);

std::vector<std::string> split(std::string_view text, char separator);

}  // namespace jackscrew
