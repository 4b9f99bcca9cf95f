#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/error.h"
#include "text/tokenizer/byte_map.h"
#include "text/utf8.h"

namespace jackscrew {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::shared_ptr<const TokenizerData> with_kinds(std::shared_ptr<const TokenizerData> data) {
  if (!data->kinds.empty()) return data;
  TokenizerData changed = *data;
  changed.kinds.assign(changed.tokens.size(), TokenKind::normal);
  return std::make_shared<const TokenizerData>(std::move(changed));
}

bool is_literal(TokenKind kind) {
  return kind == TokenKind::special || kind == TokenKind::added;
}

// The length in bytes of the first word of `text`: leading spaces, then everything up to the next
// space.
size_t first_word(std::string_view text) {
  size_t end = 0;
  while (text.substr(end).starts_with(kSpaceMark)) end += kSpaceMark.size();
  return std::min(text.find(kSpaceMark, end), text.size());
}

// The place for the id of a token that is one character; null for any other token.
int32_t* character_place(std::string_view token, std::vector<int32_t>& ids) {
  const Utf8Step first = utf8_step(token, 0);
  if (first.status != Utf8Status::valid || first.length != token.size()) return nullptr;
  const size_t character = utf8_character(token, 0);
  ids.resize(std::max(ids.size(), character + 1), -1);
  return &ids[character];
}

}  // namespace

void TokenizerData::set_pre_tokenizer(std::string_view name) {
  const NamedPreTokenizer& named = named_pre_tokenizer(name);
  pre_tokenizer = named.steps;
  ignore_merges = named.ignore_merges;
  normalizer.clear();
  if (named.nfc) normalizer.push_back({});
}

namespace {

bool is_used(const TokenizerData& data, size_t id) {
  return id < data.tokens.size() && (data.kinds.empty() || data.kinds[id] != TokenKind::unused);
}

}  // namespace

bool same_tokens(const TokenizerData& a, const TokenizerData& b) {
  const size_t end = std::max(a.tokens.size(), b.tokens.size());
  for (size_t id = 0; id < end; ++id) {
    if (is_used(a, id) != is_used(b, id)) return false;
    if (is_used(a, id) && a.tokens[id] != b.tokens[id]) return false;
  }
  return true;
}

bool same_common_tokens(const TokenizerData& a, const TokenizerData& b) {
  const size_t end = std::min(a.tokens.size(), b.tokens.size());
  for (size_t id = 0; id < end; ++id) {
    if (a.tokens[id] != b.tokens[id] && (is_used(a, id) || is_used(b, id))) return false;
  }
  return true;
}

std::pair<std::string, std::string> parse_merge(std::string_view text) {
  const size_t space = text.find(' ', 1);
  if (space == std::string_view::npos || space + 1 == text.size()) {
    fail(ErrorKind::model, "the merge \"{}\" is not two tokens with a space between", text);
  }
  return {std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
}

Tokenizer::Tokenizer(TokenizerData data)
    : Tokenizer(std::make_shared<const TokenizerData>(std::move(data))) {}

Tokenizer::Tokenizer(std::shared_ptr<const TokenizerData> data)
    : data_(with_kinds(std::move(data))),
      pre_tokenizer_(data_->pre_tokenizer),
      text_changes_(text_changes(data_->pre_tokenizer)),
      merger_(index_vocabulary()),
      literals_(make_literals(LiteralSet::all)),
      raw_literals_(make_literals(LiteralSet::raw)),
      normalized_literals_(make_literals(LiteralSet::normalized)) {}

// The state of one encode().
struct Tokenizer::Job {
  std::vector<int32_t> ids;
  bool parse_special;
  TextPlace place;

  void add(const Literal& literal) {
    ids.push_back(literal.id);
    place = TextPlace::after_special;
  }
};

void Tokenizer::check_ids() const {
  if (data_->tokens.empty()) fail(ErrorKind::model, "the tokenizer has no tokens");
  const auto size = narrow<int32_t>(vocab_size());
  if (data_->kinds.size() != data_->tokens.size()) {
    fail(ErrorKind::model, "the tokenizer has {} tokens but {} token types", size,
         data_->kinds.size());
  }
  const std::array<std::pair<const char*, int32_t>, 5> named = {{{"bos", data_->bos},
                                                                 {"eos", data_->eos},
                                                                 {"pad", data_->pad},
                                                                 {"unk", data_->unk},
                                                                 {"missing", data_->missing_id}}};
  for (const auto& [name, id] : named) {
    if (id < -1 || id >= size) {
      fail(ErrorKind::model, "the tokenizer's {} token id {} is outside its {} tokens", name, id,
           size);
    }
  }
  for (const int32_t id : data_->normalized_literals) {
    if (id < 0 || id >= size) fail(ErrorKind::model, "there is no token {} to normalize", id);
  }
  if (data_->add_bos && data_->bos < 0) {
    fail(ErrorKind::model, "the tokenizer adds a BOS token but names none");
  }
}

BpeMerger Tokenizer::index_vocabulary() {
  check_ids();
  index_tokens();
  BpeAlphabet alphabet;
  alphabet.byte_ids.fill(-1);
  alphabet.missing_id = data_->missing_id;
  alphabet.fuse_missing = data_->fuse_missing;
  for (size_t i = 0; i < data_->tokens.size(); ++i) {
    if (data_->kinds[i] == TokenKind::normal) index_normal_token(static_cast<int32_t>(i), alphabet);
  }
  index_literals(alphabet);
  const auto bytes = std::count_if(alphabet.byte_ids.begin(), alphabet.byte_ids.end(),
                                   [](int32_t id) { return id >= 0; });
  if (data_->spelling == Spelling::byte_map && bytes == 0) {
    fail(ErrorKind::model, "the tokenizer has no token for any single byte: it is not byte-level");
  }
  if (data_->spelling == Spelling::text && alphabet.character_ids.empty()) {
    fail(ErrorKind::model, "the tokenizer has no token for any single character");
  }
  if (data_->byte_fallback && bytes != 256) {
    fail(ErrorKind::model, "the tokenizer falls back on bytes, but has tokens for only {} of 256",
         bytes);
  }
  return make_merger(std::move(alphabet));
}

void Tokenizer::index_tokens() {
  bytes_.resize(data_->tokens.size());
  ids_.reserve(data_->tokens.size());
  for (size_t i = 0; i < data_->tokens.size(); ++i) {
    const std::string& token = data_->tokens[i];
    bytes_[i] = token;
    if (data_->kinds[i] == TokenKind::unused) continue;
    if (token.empty()) fail(ErrorKind::model, "the tokenizer's token {} is empty", i);
    const auto [other, inserted] = ids_.emplace(token, static_cast<int32_t>(i));
    if (!inserted) {
      fail(ErrorKind::model, "the tokenizer's tokens {} and {} are both \"{}\"", other->second, i,
           token);
    }
  }
  // The text that matches such a token, which is also what it decodes to.
  for (const int32_t id : data_->normalized_literals) {
    std::string& text = bytes_[static_cast<size_t>(id)];
    normalize(data_->normalizer, TextPlace::begin, text);
    if (data_->spelling == Spelling::text) replace_all(kSpaceMark, " ", text);
  }
}

void Tokenizer::index_normal_token(int32_t id, BpeAlphabet& alphabet) {
  const auto index = static_cast<size_t>(id);
  const std::string& token = data_->tokens[index];
  if (data_->spelling == Spelling::byte_map) {
    // A spelling outside the byte map is never produced by encoding; it decodes to itself.
    if (const auto bytes = unmap_bytes(token)) {
      bytes_[index] = *bytes;
      if (bytes->size() == 1) alphabet.byte_ids[static_cast<uint8_t>((*bytes)[0])] = id;
      if (data_->ignore_merges) words_.emplace(bytes_[index], id);
    }
    return;
  }
  if (const auto byte = data_->byte_fallback ? byte_of_token(token) : std::nullopt) {
    bytes_[index] = static_cast<char>(*byte);
    alphabet.byte_ids[*byte] = id;
    return;
  }
  replace_all(kSpaceMark, " ", bytes_[index]);
  if (data_->ignore_merges) words_.emplace(token, id);
  if (int32_t* place = character_place(token, alphabet.character_ids)) *place = id;
}

// A literal such as "é" may be spelled like byte 0xE9; unless another token is that byte's, it is.
// Where tokens are spelled as text, an added token of one character likewise counts as that
// character, which normalized text may have without being the literal. Special tokens do not: they
// count only where they are searched for.
void Tokenizer::index_literals(BpeAlphabet& alphabet) const {
  for (size_t i = 0; i < data_->tokens.size(); ++i) {
    if (!is_literal(data_->kinds[i])) continue;
    if (data_->spelling == Spelling::text) {
      if (data_->kinds[i] != TokenKind::added) continue;
      int32_t* place = character_place(data_->tokens[i], alphabet.character_ids);
      if (place != nullptr && *place < 0) *place = static_cast<int32_t>(i);
      continue;
    }
    const auto bytes = unmap_bytes(data_->tokens[i]);
    if (!bytes || bytes->size() != 1) continue;
    int32_t& id = alphabet.byte_ids[static_cast<uint8_t>((*bytes)[0])];
    if (id < 0) id = static_cast<int32_t>(i);
  }
}

BpeMerger Tokenizer::make_merger(BpeAlphabet alphabet) {
  const auto id_of = [&](const std::string& token, size_t merge) {
    const auto found = ids_.find(token);
    if (found == ids_.end()) {
      const auto& [left, right] = data_->merges[merge];
      fail(ErrorKind::model,
           "the tokenizer's merge {} (\"{}\" + \"{}\") needs the token \"{}\", "
           "which is missing",
           merge, left, right, token);
    }
    return found->second;
  };
  std::vector<BpeMerger::Merge> merges;
  merges.reserve(data_->merges.size());
  // Characters that are dropped let those on either side touch, also two spaces.
  const bool drops = !data_->byte_fallback && data_->missing_id < 0;
  spaces_begin_words_ = data_->spelling == Spelling::text && !data_->ignore_merges && !drops;
  for (size_t i = 0; i < data_->merges.size(); ++i) {
    const auto& [left, right] = data_->merges[i];
    merges.push_back({id_of(left, i), id_of(right, i), id_of(left + right, i)});
    spaces_begin_words_ =
        spaces_begin_words_ && first_word(left + right) == left.size() + right.size();
  }
  // Without a token for the space, it may be fused with what precedes it.
  const auto space = ids_.find(kSpaceMark);
  spaces_begin_words_ =
      spaces_begin_words_ && space != ids_.end() && kind(space->second) == TokenKind::normal;
  return BpeMerger(std::move(alphabet), merges);
}

Literals Tokenizer::make_literals(LiteralSet set) const {
  std::vector<bool> is_normalized(data_->tokens.size());
  for (const int32_t id : data_->normalized_literals) is_normalized[static_cast<size_t>(id)] = true;
  std::vector<Literal> literals;
  for (size_t i = 0; i < data_->tokens.size(); ++i) {
    const LiteralSet own = is_normalized[i] ? LiteralSet::normalized : LiteralSet::raw;
    const bool wanted = set == LiteralSet::all || set == own;
    if (!wanted || !is_literal(data_->kinds[i])) continue;
    std::string text = data_->tokens[i];
    if (set == LiteralSet::normalized) normalize(data_->normalizer, TextPlace::begin, text);
    if (text.empty()) continue;  // no text holds what the normalizer removes
    literals.push_back(
        {std::move(text), static_cast<int32_t>(i), data_->kinds[i] == TokenKind::special});
  }
  return Literals(std::move(literals));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special,
                                       TextPlace place) const {
  Job job{{}, parse_special, place};
  job.ids.reserve(text.size() / 3);
  raw_literals_.split(
      text, parse_special, [&](std::string_view between) { encode_bytes(between, job); },
      [&](const Literal& literal) { job.add(literal); });
  return std::move(job.ids);
}

void Tokenizer::encode_bytes(std::string_view text, Job& job) const {
  while (!text.empty()) {
    const size_t valid = utf8_valid_prefix(text);
    encode_piece(text.substr(0, valid), job);
    text.remove_prefix(valid);
    size_t invalid = 0;
    while (invalid < text.size()) {
      const Utf8Step step = utf8_step(text, invalid);
      if (step.status == Utf8Status::valid) break;
      invalid += step.length;
    }
    if (invalid == 0) continue;
    for (const char byte : text.substr(0, invalid)) {
      merger_.encode_byte(static_cast<uint8_t>(byte), job.ids);
    }
    job.place = TextPlace::inside;
    text.remove_prefix(invalid);
  }
}

// `text` is valid UTF-8 without raw literals.
void Tokenizer::encode_piece(std::string_view text, Job& job) const {
  std::string changed;
  if (!data_->normalizer.empty()) {
    changed = text;
    normalize(data_->normalizer, job.place, changed);
    text = changed;
  }
  normalized_literals_.split(
      text, job.parse_special, [&](std::string_view between) { encode_words(between, job); },
      [&](const Literal& literal) { job.add(literal); });
}

void Tokenizer::encode_words(std::string_view text, Job& job) const {
  std::string changed;
  if (!text_changes_.empty()) {
    changed = text;
    normalize(text_changes_, job.place, changed);
    text = changed;
  }
  job.place = TextPlace::inside;
  pre_tokenizer_.split(text, [&](std::string_view word) {
    while (!word.empty()) {
      const size_t size = spaces_begin_words_ ? first_word(word) : word.size();
      encode_word(word.substr(0, size), job);
      word.remove_prefix(size);
    }
  });
}

void Tokenizer::encode_word(std::string_view word, Job& job) const {
  if (data_->ignore_merges) {
    if (const auto whole = words_.find(word); whole != words_.end()) {
      job.ids.push_back(whole->second);
      return;
    }
  }
  merger_.encode(word, job.ids);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special,
                              TextPlace place) const {
  std::string text;
  bool first = place == TextPlace::begin;
  for (const int32_t id : ids) {
    if (skip_special && kind(id) == TokenKind::special) continue;
    text += first ? first_token_bytes(id) : token_bytes(id);
    first = false;
  }
  return text;
}

std::string Tokenizer::first_token_bytes(int32_t id) const {
  const std::string& bytes = token_bytes(id);
  switch (data_->leading_space) {
    case LeadingSpace::keep:
      return bytes;
    case LeadingSpace::drop_one:
      return bytes.starts_with(' ') ? bytes.substr(1) : bytes;
    case LeadingSpace::drop_first_token:
      break;
  }
  std::string token = data_->tokens[static_cast<size_t>(id)];
  if (token.find(kSpaceMark) == std::string::npos) return bytes;
  replace_all(kSpaceMark, "", token);
  return token;
}

const std::string& Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    fail(ErrorKind::data, "token id {} is outside the vocabulary of {}", id, vocab_size());
  }
  return bytes_[static_cast<size_t>(id)];
}

TokenKind Tokenizer::kind(int32_t id) const {
  token_bytes(id);
  return data_->kinds[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::find_special(std::string_view text) const {
  const Literal* literal = literals_.find(text);
  return literal == nullptr ? std::nullopt : std::optional(literal->id);
}

std::optional<Tokenizer::SpecialPlace> Tokenizer::next_special(std::string_view text) const {
  const auto [begin, literal] = literals_.next(text);
  if (literal == nullptr) return std::nullopt;
  return SpecialPlace{begin, literal->text.size(), literal->id};
}

std::string StreamDecoder::push(int32_t id) {
  if (skip_special_ && tokenizer_->kind(id) == TokenKind::special) return {};
  held_ += first_ ? tokenizer_->first_token_bytes(id) : tokenizer_->token_bytes(id);
  first_ = false;
  std::string text;
  size_t position = 0;
  while (position < held_.size()) {
    const Utf8Step step = utf8_step(held_, position);
    if (step.status == Utf8Status::incomplete) break;
    if (step.status == Utf8Status::valid) {
      text.append(held_, position, step.length);
    } else {
      text += kReplacement;
    }
    position += step.length;
  }
  held_.erase(0, position);
  return text;
}

std::string StreamDecoder::finish() {
  const bool left = !held_.empty();
  held_.clear();
  return left ? std::string(kReplacement) : std::string();
}

}  // namespace jackscrew
