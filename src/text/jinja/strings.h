// Python's string methods, for filters and methods. Bytes keep their origin.
#pragma once

#include "text/jinja/value.h"

namespace jackscrew::jinja {

enum class Side : uint8_t { both, left, right };

// str.strip: whitespace, or the characters of `characters`.
Text strip(const Text& text, Side side, const Text* characters = nullptr);

// str.split and str.rsplit: at whitespace where `separator` is null. `max_splits` < 0: no limit.
Values split(const Text& text, const Text* separator, int64_t max_splits, bool from_right);
Values split_lines(const Text& text, bool keep_ends);
// str.replace. `count` < 0: all.
Text replace(const Text& text, const Text& from, const Text& to, int64_t count);
Text join(const Text& separator, const Iterator& items);

// These change ASCII letters only; letters of other scripts that have a case are a Failure.
Text to_upper(const Text& text);
Text to_lower(const Text& text);
Text capitalize(const Text& text);
// Capitalises each word's first letter; a word begins after a character for which `ends_word` is
// true.
Text title(const Text& text, bool (*ends_word)(uint32_t code_point));

}  // namespace jackscrew::jinja
