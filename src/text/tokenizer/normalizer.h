// Changes that a tokenizer makes to a text before it is cut into words.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace jackscrew {

// What precedes a piece of text that is to be encoded.
enum class TextPlace {
  begin,          // nothing: it is the beginning of the text
  after_special,  // a special or added token
  inside          // encoded text: nothing may be put between them
};

struct NormalizerStep {
  enum class Kind {
    prepend,  // puts `to` before a non-empty text, unless `inside`
    replace,  // every `from` by `to`
    nfc       // Unicode's canonical composition
  };
  Kind kind = Kind::nfc;
  std::string from, to;
  bool at_begin_only = false;   // prepend: only at TextPlace::begin
  bool unless_present = false;  // prepend: not before a text that begins with `to`

  bool operator==(const NormalizerStep&) const = default;
};

// Replaces every `from`, which must not be empty.
void replace_all(std::string_view from, std::string_view to, std::string& text);

// Applies the steps in order to `text`, which must be valid UTF-8.
void normalize(std::span<const NormalizerStep> steps, TextPlace place, std::string& text);

// The version of Unicode by which nfc composes, "15.0.0": that of the library that is loaded.
std::string nfc_unicode_version();

}  // namespace jackscrew
