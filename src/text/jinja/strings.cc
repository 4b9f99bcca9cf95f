#include "text/jinja/strings.h"

#include <algorithm>
#include <set>

#include "text/jinja/failure.h"

namespace jackscrew::jinja {

namespace {

char upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// `change` receives each ASCII character and the code point before it (0: none).
template <typename Change>
Text change_case(const Text& text, const Change& change) {
  std::string bytes = text.bytes();
  uint32_t previous = 0;
  for (size_t i = 0; i < text.size();) {
    const uint32_t c = code_point(text.view(), i);
    const size_t size = character_size(text.view(), i);
    if (c < 0x80) {
      bytes[i] = change(static_cast<char>(c), previous);
    } else if (!is_caseless(c)) {
      fail("changing the case of \"{}\"", text.view().substr(i, size));
    }
    previous = c;
    i += size;
  }
  return text.with_bytes(std::move(bytes));
}

Values split_at_spaces(const Text& text, int64_t max_splits) {
  Values parts;
  size_t begin = skip_spaces(text.view(), 0);
  while (begin < text.size()) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.emplace_back(text.substr(begin, text.size() - begin));
      break;
    }
    size_t end = begin;
    while (end < text.size() && !is_space(code_point(text.view(), end))) {
      end += character_size(text.view(), end);
    }
    add_item(parts, text.substr(begin, end - begin));
    begin = skip_spaces(text.view(), end);
  }
  return parts;
}

Values split_at_spaces_from_right(const Text& text, int64_t max_splits) {
  Values words = split_at_spaces(text, -1);
  if (max_splits < 0 || static_cast<int64_t>(words.size()) <= max_splits) return words;
  // The words that are split off; everything before them is one part that keeps its spaces.
  const size_t first = words.size() - static_cast<size_t>(max_splits);
  size_t end = text.size();
  for (size_t i = words.size(); i-- > first;) {
    end = trimmed_end(text.view().substr(0, end)) - words[i].as_text()->size();
  }
  Values parts;
  if (Text head = strip(text.substr(0, end), Side::right); !head.empty())
    parts.emplace_back(std::move(head));
  parts.insert(parts.end(), words.begin() + static_cast<std::ptrdiff_t>(first), words.end());
  return parts;
}

}  // namespace

Text strip(const Text& text, Side side, const Text* characters) {
  const std::string_view view = text.view();
  std::set<std::string_view> stripped;
  for (size_t i = 0, size = 0; characters != nullptr && i < characters->size(); i += size) {
    size = character_size(characters->view(), i);
    stripped.insert(characters->view().substr(i, size));
  }
  const auto strips = [&](size_t at) {
    if (characters == nullptr) return is_space(code_point(view, at));
    return stripped.contains(view.substr(at, character_size(view, at)));
  };
  size_t begin = 0;
  while (side != Side::right && begin < view.size() && strips(begin)) {
    begin += character_size(view, begin);
  }
  size_t end = side == Side::left ? view.size() : begin;
  for (size_t i = begin; side != Side::left && i < view.size();) {
    const size_t next = i + character_size(view, i);
    if (!strips(i)) end = next;
    i = next;
  }
  return text.substr(begin, end - begin);
}

Values split(const Text& text, const Text* separator, int64_t max_splits, bool from_right) {
  if (separator == nullptr) {
    return from_right ? split_at_spaces_from_right(text, max_splits)
                      : split_at_spaces(text, max_splits);
  }
  const std::string_view mark = separator->view();
  if (mark.empty()) fail("split: an empty separator");
  const auto more = [&](size_t parts) {
    return max_splits < 0 || static_cast<int64_t>(parts) < max_splits;
  };
  Values parts;
  if (!from_right) {
    size_t begin = 0;
    while (more(parts.size())) {
      const size_t at = find_text(text.view(), mark, begin);
      if (at == std::string_view::npos) break;
      add_item(parts, text.substr(begin, at - begin));
      begin = at + mark.size();
    }
    parts.emplace_back(text.substr(begin, text.size() - begin));
    return parts;
  }
  const std::string reversed = backwards(text.view()), reversed_mark = backwards(mark);
  size_t end = text.size();
  while (more(parts.size())) {
    const size_t at = find_text(reversed, reversed_mark, text.size() - end);
    if (at == std::string_view::npos) break;
    const size_t begin = text.size() - at;  // behind the mark
    add_item(parts, text.substr(begin, end - begin));
    end = begin - mark.size();
  }
  parts.emplace_back(text.substr(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Values split_lines(const Text& text, bool keep_ends) {
  Values lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t end = line_end_size(text.view(), i);
    if (end == 0) {
      i += character_size(text.view(), i);
      continue;
    }
    add_item(lines, text.substr(begin, i - begin + (keep_ends ? end : 0)));
    i += end;
    begin = i;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin, text.size() - begin));
  return lines;
}

Text replace(const Text& text, const Text& from, const Text& to, int64_t count) {
  Text out;
  size_t done = 0;
  int64_t replaced = 0;
  const auto more = [&] { return count < 0 || replaced++ < count; };
  if (from.empty()) {
    // An empty `from` matches before every character and at the end.
    for (size_t i = 0; i <= text.size() && more();) {
      out.append(to);
      done = i == text.size() ? i : i + character_size(text.view(), i);
      out.append(text, i, done - i);
      if (i == text.size()) break;
      i = done;
    }
  } else {
    for (size_t at = find_text(text.view(), from.view()); at != std::string_view::npos && more();
         at = find_text(text.view(), from.view(), done)) {
      out.append(text, done, at - done);
      out.append(to);
      done = at + from.size();
    }
  }
  out.append(text, done, text.size() - done);
  return out;
}

Text join(const Text& separator, const Iterator& items) {
  Text out;
  bool first = true;
  while (const auto item = items()) {
    if (!first) out.append(separator);
    first = false;
    out.append(to_text(*item));
  }
  return out;
}

Text to_upper(const Text& text) {
  return change_case(text, [](char c, uint32_t) { return upper(c); });
}

Text to_lower(const Text& text) {
  return change_case(text, [](char c, uint32_t) { return lower(c); });
}

Text capitalize(const Text& text) {
  return change_case(text,
                     [](char c, uint32_t previous) { return previous == 0 ? upper(c) : lower(c); });
}

Text title(const Text& text, bool (*ends_word)(uint32_t code_point)) {
  return change_case(text, [&](char c, uint32_t previous) {
    return previous == 0 || ends_word(previous) ? upper(c) : lower(c);
  });
}

}  // namespace jackscrew::jinja
