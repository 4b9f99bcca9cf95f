// Pre-tokenisation: cuts a text into the words within which byte pairs are merged.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/normalizer.h"

namespace jackscrew {

// One cut. Steps apply one after another, each to the pieces of the one before, none looking beyond
// the piece it cuts. What a step matches becomes a piece of its own, and so does what lies between.
struct PreTokenizerStep {
  enum class Kind {
    digits,      // every number character (Unicode category N) by itself
    digit_runs,  // every run of number characters
    byte_level,  // GPT-2's pattern
    regex,       // `pattern`, in the syntax that Hugging Face's tokenizers use
    metaspace    // spaces become `pattern`, one character; with `split` every one begins a piece
  };
  // Where byte_level puts a space and metaspace its character before a text that begins without.
  enum class Prefix { never, at_begin, always };

  Kind kind = Kind::byte_level;
  std::string pattern;            // Kind::regex and Kind::metaspace only
  Prefix prefix = Prefix::never;  // only the first of the steps may have one
  bool split = true;              // Kind::metaspace only

  bool operator==(const PreTokenizerStep&) const = default;
};

// What the first step changes in a text before it cuts. Throws Error(model) where a later one would
// change anything.
std::vector<NormalizerStep> text_changes(std::span<const PreTokenizerStep> steps);

// The step's pattern as Hugging Face would write it, whatever its kind.
std::string step_pattern(const PreTokenizerStep& step);

// What llama.cpp's converter means by a value of `tokenizer.ggml.pre`.
struct NamedPreTokenizer {
  std::string name;
  std::vector<PreTokenizerStep> steps;
  bool ignore_merges = false;  // a word that is itself in the vocabulary is not taken apart
  bool nfc = false;            // the text is composed first
};

// Throws Error(model) with the nearest known name when `name` is unknown.
const NamedPreTokenizer& named_pre_tokenizer(std::string_view name);

// The preferred `tokenizer.ggml.pre` name for these steps, one whose texts are composed as well
// where there is such, or an empty string when they have none.
std::string pre_tokenizer_name(std::span<const PreTokenizerStep> steps, bool ignore_merges,
                               bool nfc = false);

// Immutable once built: may be copied and used by several threads.
class PreTokenizer {
 public:
  // Throws Error(model) when a pattern does not compile or uses syntax whose meaning differs here.
  explicit PreTokenizer(std::span<const PreTokenizerStep> steps);

  // Calls `word` for every piece of `text` in order; the pieces cover the text. `text` must be
  // valid UTF-8. Throws Error(data) when the pattern engine gives up on a piece.
  void split(std::string_view text, const std::function<void(std::string_view)>& word) const;

 private:
  struct Pattern;
  struct Scratch;
  void split_from(size_t step, std::string_view text, Scratch& scratch) const;

  std::vector<std::shared_ptr<const Pattern>> patterns_;
};

}  // namespace jackscrew
