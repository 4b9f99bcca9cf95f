// BPE tokenizers, byte-level or SentencePiece's: text to token ids and back.
//
// Encoding has four stages: added tokens are found in the text, the normalizer changes the text
// between them, the pre-tokenizer cuts that into words, and byte pairs are merged within each word.
//
// Bytes that are not valid UTF-8 are never an error: each becomes the token of that byte (or
// whatever the vocabulary prescribes for a byte without a token), and the valid text on either side
// is encoded separately. If every byte has a token and nothing is normalized, decode(encode(text))
// == text for any bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/literals.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pretokenizer.h"

namespace jackscrew {

// Llama 3.1's end of a message that a tool's answer follows.
inline constexpr const char* kEndOfMessage = "<|eom_id|>";

enum class TokenKind : uint8_t {
  normal,   // made by merges
  special,  // control: matched in raw text on request, left out of decoded text on request
  added,    // user-defined: literal text, always matched in raw text
  unused    // fills a gap in the ids
};

// U+2581, which represents a space in Spelling::text.
inline constexpr std::string_view kSpaceMark = "\u2581";

// How normal tokens are written.
enum class Spelling : uint8_t {
  byte_map,  // bytes, in GPT-2's map (text/tokenizer/byte_map.h): byte-level BPE
  text       // characters, kSpaceMark for a space: SentencePiece's BPE
};

// What decoding removes from the beginning of a whole text of Spelling::text.
enum class LeadingSpace : uint8_t {
  keep,
  drop_one,         // a space that the tokenizer added
  drop_first_token  // every U+2581 in the first token, as Metaspace decodes
};

// Everything that defines a tokenizer, whichever file it is from. Ids index `tokens`; -1: none.
struct TokenizerData {
  std::vector<std::string> tokens;
  std::vector<TokenKind> kinds;  // one for each token, or empty: all normal
  std::vector<std::pair<std::string, std::string>> merges;  // best first
  Spelling spelling = Spelling::byte_map;
  // Spelling::text: characters without a token are spelled by the byte tokens "<0x00>" .. "<0xFF>".
  bool byte_fallback = false;
  LeadingSpace leading_space = LeadingSpace::keep;
  std::vector<NormalizerStep> normalizer;
  // Special and added tokens that are themselves normalized and matched in the normalized text.
  std::set<int32_t> normalized_literals;
  std::vector<PreTokenizerStep> pre_tokenizer;
  bool ignore_merges = false;  // a word that is itself in the vocabulary is not split
  int32_t missing_id = -1;     // replaces bytes without a token; -1: such bytes are dropped
  bool fuse_missing = false;   // one missing_id for each run of such bytes
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t pad = -1;
  int32_t unk = -1;
  // The other tokens with a name that templates know: sep_token, image_token ...
  std::map<std::string, int32_t> named_tokens;
  bool add_bos = false;       // whether a text begins with BOS by default
  bool add_eos = false;       // what a GGUF file says: kept, but here it counts for nothing
  std::string chat_template;  // Jinja, as the model carries it; may be empty
  std::string tool_template;  // the same for conversations with tools; may be empty

  // Sets `pre_tokenizer`, `ignore_merges` and `normalizer` from a value of GGUF's
  // `tokenizer.ggml.pre`. Throws Error(model) when the name is unknown.
  void set_pre_tokenizer(std::string_view name);
};

// Whether both use the same ids for the same tokens. Unused ids do not count: they pad some files
// to the size of the model, and are left out of others.
bool same_tokens(const TokenizerData& a, const TokenizerData& b);

// Whether no id that both have stands for different tokens. Nor does it count here that only one of
// them marks an id as unused, where both have the same text for it.
bool same_common_tokens(const TokenizerData& a, const TokenizerData& b);

// Splits "left right", the form of a merge in GGUF and older tokenizer.json files. Throws
// Error(model).
std::pair<std::string, std::string> parse_merge(std::string_view text);

// Immutable and thread-safe.
class Tokenizer {
 public:
  // Throws Error(model) when ids are out of range, tokens are empty or appear twice, a merge refers
  // to a token that is missing, or a pattern does not compile.
  explicit Tokenizer(TokenizerData data);
  // Shares `data`, which must not be null: a large vocabulary takes tens of MiB.
  explicit Tokenizer(std::shared_ptr<const TokenizerData> data);
  // Members hold views into the vocabulary, which stay valid after a move but not after a copy.
  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The ids of `text`, without BOS or EOS. Added tokens are always matched, longest first; special
  // tokens only with `parse_special`, otherwise their text is ordinary text. `place` says what was
  // encoded before; BOS does not count.
  std::vector<int32_t> encode(std::string_view text, bool parse_special,
                              TextPlace place = TextPlace::begin) const;

  // The bytes of `ids`, concatenated; not valid UTF-8 where the ids split a character. Throws
  // Error(data) when an id is out of range.
  std::string decode(std::span<const int32_t> ids, bool skip_special,
                     TextPlace place = TextPlace::begin) const;

  // The bytes that one token stands for. Throws Error(data) when `id` is out of range.
  const std::string& token_bytes(int32_t id) const;
  // The bytes of a token that begins a text, without the spaces that LeadingSpace removes.
  std::string first_token_bytes(int32_t id) const;
  TokenKind kind(int32_t id) const;
  // Whether a byte that is no part of a character has a token of its own.
  bool has_byte(uint8_t byte) const { return merger_.has_byte(byte); }

  int64_t vocab_size() const { return static_cast<int64_t>(data_->tokens.size()); }
  int32_t bos() const { return data_->bos; }
  int32_t eos() const { return data_->eos; }
  int32_t pad() const { return data_->pad; }
  bool add_bos() const { return data_->add_bos; }
  // The id of a special or added token.
  std::optional<int32_t> find_special(std::string_view text) const;
  // The first special or added token spelled out in `text`, the longest where several begin.
  struct SpecialPlace {
    size_t begin, size;  // bytes
    int32_t id;
  };
  std::optional<SpecialPlace> next_special(std::string_view text) const;
  const TokenizerData& data() const { return *data_; }

 private:
  struct Job;  // one call of encode()

  // Checks the data, fills the members between data_ and merger_, and returns the merger.
  BpeMerger index_vocabulary();
  void check_ids() const;
  void index_tokens();
  void index_normal_token(int32_t id, BpeAlphabet& alphabet);
  void index_literals(BpeAlphabet& alphabet) const;
  BpeMerger make_merger(BpeAlphabet alphabet);
  // Added tokens: all, as they are spelled; those found before the text is normalized; or those
  // found behind that, spelled as they are then.
  enum class LiteralSet : uint8_t { all, raw, normalized };
  Literals make_literals(LiteralSet set) const;
  void encode_bytes(std::string_view text, Job& job) const;
  void encode_piece(std::string_view text, Job& job) const;
  void encode_words(std::string_view text, Job& job) const;
  void encode_word(std::string_view word, Job& job) const;

  std::shared_ptr<const TokenizerData> data_;            // never null
  std::vector<std::string> bytes_;                       // by id
  std::unordered_map<std::string_view, int32_t> ids_;    // by spelling; views into data_->tokens
  std::unordered_map<std::string_view, int32_t> words_;  // as merged; only with ignore_merges
  // No merge joins another character with a following U+2581, so words may be cut there.
  bool spaces_begin_words_ = false;
  PreTokenizer pre_tokenizer_;
  std::vector<NormalizerStep> text_changes_;  // the pre-tokenizer's
  BpeMerger merger_;
  Literals literals_;  // every special and added token, as spelled
  Literals raw_literals_;
  Literals normalized_literals_;
};

// Turns a stream of ids into the text that Tokenizer::decode() makes of them all, but always valid
// UTF-8: bytes are held back until their character is complete, and bytes that can no longer become
// one are replaced by U+FFFD.
class StreamDecoder {
 public:
  // `tokenizer` must outlive the decoder.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special, TextPlace place = TextPlace::begin)
      : tokenizer_(&tokenizer), skip_special_(skip_special), first_(place == TextPlace::begin) {}

  // The text that `id` completes. Throws Error(data) when `id` is out of range.
  std::string push(int32_t id);
  // Ends the text: returns what is still held back, as U+FFFD.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool first_;  // the next token begins the text
  std::string held_;
};

}  // namespace jackscrew
