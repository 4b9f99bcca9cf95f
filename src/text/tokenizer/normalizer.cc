#include "text/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/checked.h"
#include "base/error.h"
#include "text/utf8.h"

namespace jackscrew {

namespace {

int combining_class(utf8proc_int32_t character) {
  return utf8proc_get_property(character)->combining_class;
}

// Composes to NFC. The library's own decomposition sorts marks one step at a time, quadratic in a
// long run of them; here it only decomposes single characters and composes sorted ones.
void compose(std::string& text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; }))
    return;
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  std::array<utf8proc_int32_t, 16> parts{};  // the longest canonical decomposition has 4
  for (size_t i = 0; i < text.size();) {
    const auto character = static_cast<utf8proc_int32_t>(utf8_character(text, i));
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(character, parts.data(), parts.size(), UTF8PROC_DECOMPOSE, nullptr);
    characters.insert(characters.end(), parts.begin(), parts.begin() + std::max<int64_t>(count, 0));
    i += utf8_length(text[i]);
  }
  for (auto mark = characters.begin(); mark != characters.end();) {
    const auto is_mark = [](utf8proc_int32_t c) { return combining_class(c) != 0; };
    mark = std::find_if(mark, characters.end(), is_mark);
    const auto end = std::find_if_not(mark, characters.end(), is_mark);
    std::stable_sort(mark, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    mark = end;
  }
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(characters.data(), narrow<utf8proc_ssize_t>(characters.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  text.clear();
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    append_utf8(text, static_cast<uint32_t>(characters[static_cast<size_t>(i)]));
  }
}

}  // namespace

void replace_all(std::string_view from, std::string_view to, std::string& text) {
  size_t at = text.find(from);
  if (at == std::string::npos) return;
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  size_t done = 0;
  for (; at != std::string::npos; at = text.find(from, done)) {
    out.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  out.append(text, done);
  text = std::move(out);
}

void normalize(std::span<const NormalizerStep> steps, TextPlace place, std::string& text) {
  for (const NormalizerStep& step : steps) {
    switch (step.kind) {
      case NormalizerStep::Kind::prepend:
        if (text.empty() || place == TextPlace::inside) break;
        if (step.at_begin_only && place != TextPlace::begin) break;
        if (step.unless_present && text.starts_with(step.to)) break;
        text.insert(0, step.to);
        break;
      case NormalizerStep::Kind::replace:
        replace_all(step.from, step.to, text);
        break;
      case NormalizerStep::Kind::nfc:
        compose(text);
        break;
    }
  }
}

std::string nfc_unicode_version() {
  return utf8proc_unicode_version();
}

}  // namespace jackscrew
