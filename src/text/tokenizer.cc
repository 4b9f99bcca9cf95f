#include "text/tokenizer.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "text/byte_map.h"
#include "text/utf8.h"

namespace jackscrew {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

uint16_t bucket_key(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  const auto second = static_cast<uint8_t>(text[1]);
  return static_cast<uint16_t>((first << 8) | second);
}

TokenizerData with_kinds(TokenizerData data) {
  if (data.kinds.empty()) data.kinds.assign(data.tokens.size(), TokenKind::normal);
  return data;
}

bool is_literal(TokenKind kind) {
  return kind == TokenKind::special || kind == TokenKind::added;
}

}  // namespace

void TokenizerData::set_pre_tokenizer(std::string_view name) {
  const NamedPreTokenizer& named = named_pre_tokenizer(name);
  pre_tokenizer = named.steps;
  ignore_merges = named.ignore_merges;
}

std::pair<std::string, std::string> parse_merge(std::string_view text) {
  const size_t space = text.find(' ', 1);
  if (space == std::string_view::npos || space + 1 == text.size()) {
    fail(ErrorKind::model, "the merge \"{}\" is not two tokens with a space between", text);
  }
  return {std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
}

Tokenizer::Tokenizer(TokenizerData data)
    : data_(with_kinds(std::move(data))),
      pre_tokenizer_(data_.pre_tokenizer),
      merger_(index_vocabulary()) {}

BpeMerger Tokenizer::index_vocabulary() {
  check_ids();
  index_tokens();
  return make_merger();
}

void Tokenizer::check_ids() const {
  if (data_.tokens.empty()) fail(ErrorKind::model, "the tokenizer has no tokens");
  const auto size = narrow<int32_t>(vocab_size());
  if (data_.kinds.size() != data_.tokens.size()) {
    fail(ErrorKind::model, "the tokenizer has {} tokens but {} token types", size,
         data_.kinds.size());
  }
  const std::array<std::pair<const char*, int32_t>, 5> named = {{{"bos", data_.bos},
                                                                 {"eos", data_.eos},
                                                                 {"pad", data_.pad},
                                                                 {"unk", data_.unk},
                                                                 {"missing", data_.missing_id}}};
  for (const auto& [name, id] : named) {
    if (id < -1 || id >= size) {
      fail(ErrorKind::model, "the tokenizer's {} token id {} is outside its {} tokens", name, id,
           size);
    }
  }
  if (data_.add_bos && data_.bos < 0) {
    fail(ErrorKind::model, "the tokenizer adds a BOS token but names none");
  }
}

void Tokenizer::index_tokens() {
  bytes_.resize(data_.tokens.size());
  ids_.reserve(data_.tokens.size());
  byte_ids_.fill(-1);
  for (size_t i = 0; i < data_.tokens.size(); ++i) {
    const std::string& token = data_.tokens[i];
    const TokenKind kind = data_.kinds[i];
    const auto id = static_cast<int32_t>(i);
    if (kind == TokenKind::unused) {
      bytes_[i] = token;
      continue;
    }
    if (token.empty()) fail(ErrorKind::model, "the tokenizer's token {} is empty", id);
    const auto [other, inserted] = ids_.emplace(token, id);
    if (!inserted) {
      fail(ErrorKind::model, "the tokenizer's tokens {} and {} are both \"{}\"", other->second, id,
           token);
    }
    bytes_[i] = token;
    if (is_literal(kind)) {
      literals_.push_back({token, id, kind == TokenKind::special});
      continue;
    }
    // A spelling outside the byte map can never be encoded; it decodes to itself.
    if (const auto bytes = unmap_bytes(token)) {
      bytes_[i] = *bytes;
      if (bytes->size() == 1) byte_ids_[static_cast<uint8_t>((*bytes)[0])] = id;
    }
  }
  if (data_.ignore_merges) {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (data_.kinds[i] == TokenKind::normal) words_.emplace(bytes_[i], static_cast<int32_t>(i));
    }
  }
  std::stable_sort(literals_.begin(), literals_.end(), [](const Literal& a, const Literal& b) {
    return a.text.size() > b.text.size();
  });
  for (size_t i = 0; i < literals_.size(); ++i) {
    const std::string& text = literals_[i].text;
    literal_begins_[static_cast<uint8_t>(text[0])] = true;
    if (text.size() >= 2) literal_buckets_[bucket_key(text)].push_back(i);
  }
}

BpeMerger Tokenizer::make_merger() const {
  if (std::all_of(byte_ids_.begin(), byte_ids_.end(), [](int32_t id) { return id < 0; })) {
    fail(ErrorKind::model, "the tokenizer has no token for any single byte: it is not byte-level");
  }
  const auto id_of = [&](const std::string& token, size_t merge) {
    const auto found = ids_.find(token);
    if (found == ids_.end()) {
      const auto& [left, right] = data_.merges[merge];
      fail(ErrorKind::model,
           "the tokenizer's merge {} (\"{}\" + \"{}\") needs the token \"{}\", "
           "which is missing",
           merge, left, right, token);
    }
    return found->second;
  };
  std::vector<BpeMerger::Merge> merges;
  merges.reserve(data_.merges.size());
  for (size_t i = 0; i < data_.merges.size(); ++i) {
    const auto& [left, right] = data_.merges[i];
    merges.push_back({id_of(left, i), id_of(right, i), id_of(left + right, i)});
  }
  return BpeMerger(byte_ids_, merges, data_.missing_id, data_.fuse_missing);
}

const Tokenizer::Literal* Tokenizer::literal_at(std::string_view text, size_t position,
                                                bool parse_special) const {
  const std::string_view rest = text.substr(position);
  if (!literal_begins_[static_cast<uint8_t>(rest[0])]) return nullptr;
  const auto fits = [&](const Literal& literal) {
    return (parse_special || !literal.special) && rest.starts_with(literal.text);
  };
  if (rest.size() >= 2) {
    if (const auto bucket = literal_buckets_.find(bucket_key(rest));
        bucket != literal_buckets_.end()) {
      for (const size_t i : bucket->second) {
        if (fits(literals_[i])) return &literals_[i];
      }
    }
  }
  // Tokens of one byte are the shortest, so they stand last.
  for (size_t i = literals_.size(); i > 0 && literals_[i - 1].text.size() == 1; --i) {
    if (fits(literals_[i - 1])) return &literals_[i - 1];
  }
  return nullptr;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special,
                                       const ProgressCallback& progress) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    const Literal* literal = literal_at(text, i, parse_special);
    if (literal == nullptr) {
      ++i;
      continue;
    }
    encode_bytes(text.substr(done, i - done), ids, progress);
    ids.push_back(literal->id);
    if (progress) progress(static_cast<int64_t>(literal->text.size()));
    i += literal->text.size();
    done = i;
  }
  encode_bytes(text.substr(done), ids, progress);
  return ids;
}

void Tokenizer::encode_bytes(std::string_view text, std::vector<int32_t>& ids,
                             const ProgressCallback& progress) const {
  while (!text.empty()) {
    const size_t valid = utf8_valid_prefix(text);
    encode_utf8(text.substr(0, valid), ids, progress);
    text.remove_prefix(valid);
    size_t invalid = 0;
    while (invalid < text.size()) {
      const Utf8Step step = utf8_step(text, invalid);
      if (step.status == Utf8Status::valid) break;
      invalid += step.length;
    }
    for (const char& byte : text.substr(0, invalid)) merger_.encode({&byte, 1}, ids);
    if (progress && invalid > 0) progress(static_cast<int64_t>(invalid));
    text.remove_prefix(invalid);
  }
}

void Tokenizer::encode_utf8(std::string_view text, std::vector<int32_t>& ids,
                            const ProgressCallback& progress) const {
  pre_tokenizer_.split(text, [&](std::string_view word) {
    if (progress) progress(static_cast<int64_t>(word.size()));
    if (data_.ignore_merges) {
      if (const auto whole = words_.find(word); whole != words_.end()) {
        ids.push_back(whole->second);
        return;
      }
    }
    merger_.encode(word, ids);
  });
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  for (const int32_t id : ids) {
    const std::string& bytes = token_bytes(id);
    if (!skip_special || kind(id) != TokenKind::special) text += bytes;
  }
  return text;
}

const std::string& Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    fail(ErrorKind::data, "token id {} is outside the vocabulary of {}", id, vocab_size());
  }
  return bytes_[static_cast<size_t>(id)];
}

TokenKind Tokenizer::kind(int32_t id) const {
  token_bytes(id);
  return data_.kinds[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::find_special(std::string_view text) const {
  const auto found = ids_.find(text);
  if (found == ids_.end() || !is_literal(kind(found->second))) return std::nullopt;
  return found->second;
}

std::optional<Tokenizer::SpecialPlace> Tokenizer::next_special(std::string_view text) const {
  for (size_t i = 0; i < text.size(); ++i) {
    if (const Literal* literal = literal_at(text, i, true)) {
      return SpecialPlace{i, literal->text.size(), literal->id};
    }
  }
  return std::nullopt;
}

std::string StreamDecoder::push(int32_t id) {
  const std::string& bytes = tokenizer_->token_bytes(id);
  if (skip_special_ && tokenizer_->kind(id) == TokenKind::special) return {};
  held_ += bytes;
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
