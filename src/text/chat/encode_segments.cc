#include <algorithm>

#include "text/chat/chat_template.h"

namespace jackscrew {

EncodedSegments encode_segments(const Tokenizer& tokenizer, std::span<const Segment> segments) {
  EncodedSegments out;
  const auto append = [&](std::span<const int32_t> ids, bool trained) {
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.trained.resize(out.ids.size(), trained ? 1 : 0);
  };
  std::string pending;  // text without special tokens, not encoded yet
  bool pending_trained = false;
  TextPlace place = TextPlace::begin;
  const auto flush = [&] {
    if (pending.empty()) return;
    append(tokenizer.encode(pending, false, place), pending_trained);
    place = TextPlace::inside;
    pending.clear();
  };
  for (const Segment& segment : segments) {
    if (segment.trained != pending_trained) flush();
    pending_trained = segment.trained;
    std::string_view rest = segment.text;
    while (segment.is_template_text) {
      const auto special = tokenizer.next_special(rest);
      if (!special) break;
      pending += rest.substr(0, special->begin);
      flush();
      append({&special->id, 1}, segment.trained);
      place = TextPlace::after_special;
      rest.remove_prefix(special->begin + special->size);
    }
    pending += rest;
  }
  flush();
  const auto begins_with_bos = [&](size_t count) {
    return tokenizer.bos() >= 0 && out.ids.size() >= count &&
           std::all_of(out.ids.begin(), out.ids.begin() + static_cast<std::ptrdiff_t>(count),
                       [&](int32_t id) { return id == tokenizer.bos(); });
  };
  if (tokenizer.add_bos() && !begins_with_bos(1)) {
    out.ids.insert(out.ids.begin(), tokenizer.bos());
    out.trained.insert(out.trained.begin(), 0);
  }
  while (begins_with_bos(2)) {
    out.ids.erase(out.ids.begin());
    out.trained.erase(out.trained.begin());
    out.dropped_bos = true;
  }
  for (size_t i = 0; i < out.ids.size(); ++i) {
    const bool ends = out.trained[i] != 0 && (i + 1 == out.ids.size() || out.trained[i + 1] == 0);
    if (ends && tokenizer.kind(out.ids[i]) != TokenKind::special) ++out.unended;
  }
  return out;
}

}  // namespace jackscrew
