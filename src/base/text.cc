#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>

namespace jackscrew {

namespace {

int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<int64_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int64_t diagonal = row[0];
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t above = row[j];
      const int64_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({substitute, above + 1, row[j - 1] + 1});
      diagonal = above;
    }
  }
  return row[b.size()];
}

struct Character {
  uint32_t code;
  size_t bytes;  // 0: none
};

// The character at the beginning of `text` if it is invisible and changes how the text around it
// looks: controls, line ends, marks and overrides of the direction of writing.
Character unseen_character(std::string_view text) {
  const auto byte = [&](size_t i) -> uint32_t {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const uint32_t first = byte(0);
  if (first < 0x20 || first == 0x7F) return {first, 1};
  const bool two = (first == 0xC2 || first == 0xD8) && (byte(1) & 0xC0u) == 0x80u;
  if (two) {
    const uint32_t code = (first & 0x1Fu) << 6 | (byte(1) & 0x3Fu);
    const bool unseen = code <= 0x9F || code == 0x61C;
    return unseen ? Character{code, 2} : Character{0, 0};
  }
  const bool three = first == 0xE2 && (byte(1) & 0xC0u) == 0x80u && (byte(2) & 0xC0u) == 0x80u;
  if (!three) return {0, 0};
  const uint32_t code = 0x2000u | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
  const bool unseen = code == 0x200E || code == 0x200F || (code >= 0x2028 && code <= 0x202E) ||
                      (code >= 0x2066 && code <= 0x2069);
  return unseen ? Character{code, 3} : Character{0, 0};
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view name,
                                        std::span<const std::string> candidates) {
  int64_t best = std::numeric_limits<int64_t>::max();
  std::optional<std::string> nearest;
  for (const std::string& candidate : candidates) {
    const int64_t distance = edit_distance(lower_case(name), lower_case(candidate));
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  const auto size = static_cast<int64_t>(name.size());
  // Of a single letter, any other is as near.
  if (best > 1 + size / 4 || best >= size) return std::nullopt;
  return nearest;
}

std::string human_bytes(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  constexpr double kKiB = 1024.0, kMiB = 1048576.0, kGiB = 1073741824.0;
  // What would round up to "1024.0 KiB" is a MiB.
  constexpr double kMost = 1023.95;
  if (bytes < 1024) return fmt::format("{} B", bytes);
  if (value < kMost * kKiB) return fmt::format("{:.1f} KiB", value / kKiB);
  if (value < kMost * kMiB) return fmt::format("{:.1f} MiB", value / kMiB);
  return fmt::format("{:.2f} GiB", value / kGiB);
}

std::string human_bytes(int64_t bytes, int64_t compared_to) {
  const std::string text = human_bytes(bytes);
  if (bytes == compared_to || text != human_bytes(compared_to)) return text;
  return fmt::format("{} ({} B)", text, bytes);
}

std::string human_count(int64_t count) {
  if (count < 1000) return std::to_string(count);
  const double value = static_cast<double>(count);
  // What would round up to "1000.0k" is a million.
  return value < 999950.0 ? fmt::format("{:.1f}k", value * 1e-3)
                          : fmt::format("{:.1f}M", value * 1e-6);
}

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string counted(int64_t count, std::string_view noun, std::string_view plural) {
  return fmt::format("{} {}", count, count == 1 ? noun : plural);
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  size_t digits = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) != 0 || text[digits] == '.')) {
    ++digits;
  }
  const auto number = parse_double(text.substr(0, digits));
  if (!number) return std::nullopt;
  std::string unit = lower_case(text.substr(digits));
  std::erase(unit, ' ');
  double scale = 0;
  if (unit == "b") scale = 1;
  if (unit == "kib" || unit == "k") scale = 1024.0;
  if (unit == "mib" || unit == "m") scale = 1048576.0;
  if (unit == "gib" || unit == "g") scale = 1073741824.0;
  if (unit == "tib" || unit == "t") scale = 1099511627776.0;
  if (unit == "kb") scale = 1e3;
  if (unit == "mb") scale = 1e6;
  if (unit == "gb") scale = 1e9;
  if (unit == "tb") scale = 1e12;
  const double bytes = *number * scale;
  if (scale == 0 || bytes > 9e18) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

std::string plain_number(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

std::string human_duration(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  const int64_t hours = total / 3600;
  const int64_t minutes = total / 60 % 60;
  if (hours > 0) return fmt::format("{}h{:02}m", hours, minutes);
  if (minutes > 0) return fmt::format("{}m{:02}s", minutes, total % 60);
  return fmt::format("{}s", total);
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

std::optional<int64_t> parse_int(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_double(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<bool> parse_bool(std::string_view text) {
  const std::string lower = lower_case(text);
  if (lower == "true" || lower == "yes" || lower == "on" || lower == "1") return true;
  if (lower == "false" || lower == "no" || lower == "off" || lower == "0") return false;
  return std::nullopt;
}

std::string one_line(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto [code, bytes] = unseen_character(text.substr(at));
    if (bytes == 0) {
      out += text[at++];
      continue;
    }
    out += code == '\n' ? std::string("\\n") : fmt::format("\\u{:04x}", code);
    at += bytes;
  }
  return out;
}

std::string without_controls(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto [code, bytes] = unseen_character(text.substr(at));
    const bool stays = bytes == 0 || code == '\n' || code == '\t';
    if (stays) {
      out += text[at++];
      continue;
    }
    out += "\uFFFD";
    at += bytes;
  }
  return out;
}

bool is_repository_name(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == 0 || slash == std::string_view::npos || slash + 1 == name.size()) return false;
  if (name.find('/', slash + 1) != std::string_view::npos || name.front() == '.') return false;
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.' ||
           c == '/';
  };
  if (!std::all_of(name.begin(), name.end(), allowed)) return false;
  const std::string_view last = name.substr(slash + 1);
  for (const char* extension :
       {".gguf", ".json", ".jsonl", ".csv", ".txt", ".safetensors", ".yaml"}) {
    if (last.ends_with(extension)) return false;
  }
  std::error_code unknown;
  return !std::filesystem::is_directory(name.substr(0, slash), unknown);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace jackscrew
