// What a tokenizer changes in a text before the text is cut into words.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace jackscrew {

// What stands before a piece of text that is to be encoded.
enum class TextPlace {
  begin,          // nothing: it begins the text
  after_special,  // a special or added token
  inside          // text that was encoded before it: nothing may be put between them
};

struct NormalizerStep {
  enum class Kind {
    prepend,  // `to`, before a text that is not empty, unless it stands `inside`
    replace,  // every `from` by `to`
    nfc       // Unicode's canonical composition
  };
  Kind kind = Kind::nfc;
  std::string from, to;
  bool at_begin_only = false;   // prepend: only at TextPlace::begin
  bool unless_present = false;  // prepend: not before a text that begins with `to`

  bool operator==(const NormalizerStep&) const = default;
};

// Applies the steps to `text`, which must be valid UTF-8, one after another.
void normalize(std::span<const NormalizerStep> steps, TextPlace place, std::string& text);

}  // namespace jackscrew
