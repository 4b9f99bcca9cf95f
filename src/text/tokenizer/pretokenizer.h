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

// One way of cutting. Steps apply in order, each to the pieces of the one before, and see no
// further than the piece that they cut. Each match becomes a piece, and so does the text between
// matches.
struct PreTokenizerStep {
  enum class Kind {
    digits,      // every number character (Unicode category N) by itself
    digit_runs,  // every run of number characters
    byte_level,  // GPT-2's pattern
    regex,       // `pattern`, in the syntax that Hugging Face's tokenizers use
    metaspace    // spaces become `pattern`, one character; with `split` every one begins a piece
  };
  // Whether byte_level puts a space, or metaspace its character, before a text that begins without
  // one.
  enum class Prefix { never, at_begin, always };

  Kind kind = Kind::byte_level;
  std::string pattern;            // Kind::regex and Kind::metaspace only
  Prefix prefix = Prefix::never;  // only the first of the steps may have one
  bool split = true;              // Kind::metaspace only

  bool operator==(const PreTokenizerStep&) const = default;
};

// The changes that the first step makes to a text before it cuts. Throws Error(model) where a later
// step would change anything.
std::vector<NormalizerStep> text_changes(std::span<const PreTokenizerStep> steps);

// The step's pattern as Hugging Face would write it, whatever its kind.
std::string step_pattern(const PreTokenizerStep& step);

// The version of Unicode that says to patterns which characters are letters, digits or space,
// "14.0.0": that of the library that is loaded.
std::string pattern_unicode_version();

// The meaning of a value of `tokenizer.ggml.pre` in llama.cpp's converter.
struct NamedPreTokenizer {
  std::string name;
  std::vector<PreTokenizerStep> steps;
  bool ignore_merges = false;  // a word that is itself in the vocabulary is not taken apart
  bool nfc = false;            // the text is composed to NFC first
};

// Throws Error(model) when `name` is unknown.
const NamedPreTokenizer& named_pre_tokenizer(std::string_view name);

// The preferred `tokenizer.ggml.pre` name for these steps; with `nfc`, one that also composes if
// there is such. Empty where the steps have no name.
std::string pre_tokenizer_name(std::span<const PreTokenizerStep> steps, bool ignore_merges,
                               bool nfc = false);

// Immutable once built; may be copied, and is thread-safe.
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
