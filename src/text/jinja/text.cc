#include "text/jinja/text.h"

#include <algorithm>
#include <cstring>

#include "text/jinja/failure.h"
#include "text/utf8.h"

namespace jackscrew::jinja {

void Text::fail_too_long() {
  fault("a text of more than {} MiB", kMaxBytes >> 20);
}

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
  if (bytes_.size() > kMaxBytes) fail_too_long();
  add_run(bytes_.size(), origin);
}

void Text::add_run(size_t end, Origin origin) {
  const size_t begin = runs_.empty() ? 0 : runs_.back().end;
  if (end == begin) return;
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = end;
  } else {
    if (runs_.size() == kMaxRuns) fault("a text of more than {} pieces", kMaxRuns);
    runs_.push_back({end, origin});
  }
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.size() > kMaxBytes - bytes_.size()) fail_too_long();
  bytes_ += bytes;
  add_run(bytes_.size(), origin);
}

void Text::append(const Text& other, size_t begin, size_t count) {
  const size_t end = begin + std::min(count, other.size() - begin);
  auto run = std::upper_bound(other.runs_.begin(), other.runs_.end(), begin,
                              [](size_t at, const Run& r) { return at < r.end; });
  while (begin < end) {
    const size_t stop = std::min(run->end, end);
    append(other.view().substr(begin, stop - begin), run->origin);
    begin = stop;
    ++run;
  }
}

Text Text::substr(size_t begin, size_t count) const {
  Text part;
  part.append(*this, begin, count);
  return part;
}

void Text::add_origin(Origin bits) {
  const std::vector<Run> runs = std::move(runs_);
  runs_.clear();
  for (const Run& run : runs) add_run(run.end, run.origin | bits);
}

Text Text::with_bytes(std::string bytes) const {
  Text out;
  out.bytes_ = std::move(bytes);
  out.runs_ = runs_;
  return out;
}

Origin Text::origin_at(size_t position) const {
  return std::upper_bound(runs_.begin(), runs_.end(), position,
                          [](size_t at, const Run& run) { return at < run.end; })
      ->origin;
}

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  const std::string_view rest = text.substr(from);
  const void* found = ::memmem(rest.data(), rest.size(), part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::string backwards(std::string_view text) {
  return {text.rbegin(), text.rend()};
}

size_t character_size(std::string_view text, size_t position) {
  if (static_cast<uint8_t>(text[position]) < 0x80) return 1;
  const Utf8Step step = utf8_step(text, position);
  return step.status == Utf8Status::valid ? step.length : 1;
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (size_t i = 0; i < text.size(); i += character_size(text, i)) ++count;
  return count;
}

uint32_t code_point(std::string_view text, size_t position) {
  const bool is_valid = utf8_step(text, position).status == Utf8Status::valid;
  return is_valid ? utf8_character(text, position) : 0xFFFD;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_caseless(uint32_t c) {
  struct Range {
    uint32_t first, last;
  };
  constexpr Range kRanges[] = {
      {0x80, 0xA9},        // signs of Latin-1
      {0x5BE, 0x109F},     // Hebrew, Arabic, the scripts of India, Thai, Tibetan
      {0x2000, 0x206F},    // punctuation
      {0x20A0, 0x20CF},    // currencies
      {0x2190, 0x2459},    // arrows, operators
      {0x2500, 0x2BFF},    // drawing, symbols
      {0x2E80, 0xA63F},    // Chinese and Japanese
      {0xAC00, 0xD7FF},    // Korean
      {0xFE00, 0xFE4F},    // selectors of variants, vertical forms
      {0xFF01, 0xFF20},    // wide signs and digits
      {0x1F300, 0x1FAFF},  // pictographs
      {0x20000, 0x3FFFF}   // Chinese
  };
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [&](const Range& range) { return c >= range.first && c <= range.last; });
}

size_t line_end_size(std::string_view text, size_t position) {
  if (text.substr(position).starts_with("\r\n")) return 2;
  const uint32_t c = code_point(text, position);
  const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                    c == 0x2028 || c == 0x2029;
  return ends ? character_size(text, position) : 0;
}

size_t skip_spaces(std::string_view text, size_t position) {
  while (position < text.size() && is_space(code_point(text, position))) {
    position += character_size(text, position);
  }
  return position;
}

size_t trimmed_end(std::string_view text) {
  size_t end = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t next = i + character_size(text, i);
    if (!is_space(code_point(text, i))) end = next;
    i = next;
  }
  return end;
}

}  // namespace jackscrew::jinja
