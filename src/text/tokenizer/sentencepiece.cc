#include "text/tokenizer/sentencepiece.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"
#include "text/tokenizer/ranked_merges.h"

namespace jackscrew {

namespace {

// Iterates over the fields of a protobuf message. Every length is checked against the bytes left.
class Message {
 public:
  Message(std::string_view bytes, const std::string& file_name)
      : rest_(bytes), file_name_(&file_name) {}

  // Reads the next field; false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    number_ = key >> 3;
    switch (key & 7) {
      case 0:
        value_ = varint();
        break;
      case 1:
        text_ = take(8);
        break;
      case 2:
        text_ = take(varint());
        break;
      case 5:
        text_ = take(4);
        value_ = 0;
        for (size_t i = 4; i > 0; --i) value_ = value_ << 8 | static_cast<uint8_t>(text_[i - 1]);
        break;
      default:
        damaged("a field of unknown type");
    }
    wire_ = key & 7;
    return true;
  }

  uint64_t number() const { return number_; }
  // The field's value; throws unless it has that type.
  std::string_view text() const { return expect(2), text_; }
  Message message() const { return {text(), *file_name_}; }
  int64_t integer() const { return expect(0), static_cast<int64_t>(value_); }
  bool boolean() const { return integer() != 0; }
  double number_f32() const {
    return expect(5), static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(value_)));
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    damaged("a number of more than 64 bits");
  }
  std::string_view take(uint64_t size) {
    if (size > rest_.size()) damaged("a field beyond its end");
    const std::string_view part = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return part;
  }
  void expect(uint64_t wire) const {
    if (wire_ != wire) damaged(fmt::format("field {} of another type", number_));
  }
  [[noreturn]] void damaged(const std::string& what) const {
    throw Error(ErrorKind::model, fmt::format("{}: damaged: {}", *file_name_, what),
                "a SentencePiece model or a tiktoken file was expected");
  }

  std::string_view rest_;
  const std::string* file_name_;
  uint64_t number_ = 0, wire_ = 0, value_ = 0;
  std::string_view text_;
};

// The contents of a ModelProto, with SentencePiece's defaults (sentencepiece_model.proto).
struct Model {
  std::vector<Piece> pieces;
  int64_t model_type = 1;
  bool whitespace_as_suffix = false, byte_fallback = false;
  int64_t unk = 0, bos = 1, eos = 2, pad = -1;
  std::string normalization;
  bool has_rules = false;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

Piece read_piece(Message message) {
  Piece piece;
  while (message.next()) {
    if (message.number() == 1) piece.text = message.text();
    if (message.number() == 2) piece.score = message.number_f32();
    if (message.number() == 3) piece.type = static_cast<PieceType>(message.integer());
  }
  return piece;
}

void read_trainer(Message message, Model& model) {
  while (message.next()) {
    switch (message.number()) {
      case 3:
        model.model_type = message.integer();
        break;
      case 24:
        model.whitespace_as_suffix = message.boolean();
        break;
      case 35:
        model.byte_fallback = message.boolean();
        break;
      case 40:
        model.unk = message.integer();
        break;
      case 41:
        model.bos = message.integer();
        break;
      case 42:
        model.eos = message.integer();
        break;
      case 43:
        model.pad = message.integer();
        break;
      default:
        break;
    }
  }
}

void read_normalizer(Message message, Model& model) {
  while (message.next()) {
    switch (message.number()) {
      case 1:
        model.normalization = message.text();
        break;
      case 2:
        model.has_rules = !message.text().empty();
        break;
      case 3:
        model.add_dummy_prefix = message.boolean();
        break;
      case 4:
        model.remove_extra_whitespaces = message.boolean();
        break;
      case 5:
        model.escape_whitespaces = message.boolean();
        break;
      default:
        break;
    }
  }
}

Model read_model(std::string_view bytes, const std::string& file_name) {
  Model model;
  Message message(bytes, file_name);
  while (message.next()) {
    if (message.number() == 1) model.pieces.push_back(read_piece(message.message()));
    if (message.number() == 2) read_trainer(message.message(), model);
    if (message.number() == 3) read_normalizer(message.message(), model);
  }
  return model;
}

void refuse_unsupported(const Model& model, const std::string& file_name) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::model, fmt::format("{}: {} is not supported", file_name, what),
                "SentencePiece models such as Llama's and Mistral's are");
  };
  constexpr std::array<const char*, 5> kTypes = {"0", "Unigram", "BPE", "Word", "Char"};
  if (model.model_type != 2) {
    const bool known = model.model_type > 0 && model.model_type < 5;
    refuse(fmt::format(
        "a SentencePiece model of type {}",
        known ? kTypes[static_cast<size_t>(model.model_type)] : std::to_string(model.model_type)));
  }
  if (model.has_rules) {
    refuse(fmt::format("SentencePiece's normalization \"{}\"", model.normalization));
  }
  if (model.remove_extra_whitespaces) refuse("SentencePiece's remove_extra_whitespaces");
  if (!model.escape_whitespaces) refuse("a SentencePiece model without escape_whitespaces");
  if (model.whitespace_as_suffix) refuse("SentencePiece's treat_whitespace_as_suffix");
}

}  // namespace

TokenKind token_kind(PieceType type) {
  switch (type) {
    case PieceType::normal:
    case PieceType::byte:
      return TokenKind::normal;
    case PieceType::unknown:
    case PieceType::control:
      return TokenKind::special;
    case PieceType::user_defined:
      return TokenKind::added;
    case PieceType::unused:
      return TokenKind::unused;
  }
  fail(ErrorKind::model, "a token is of unknown type {}", static_cast<int64_t>(type));
}

TokenizerData sentencepiece_bpe(const std::vector<Piece>& pieces, bool add_dummy_prefix) {
  TokenizerData data;
  data.spelling = Spelling::text;
  data.fuse_missing = true;
  std::vector<size_t> order;  // normal pieces, best first
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    data.tokens.push_back(piece.text);
    data.kinds.push_back(token_kind(piece.type));
    if (piece.type == PieceType::byte) data.byte_fallback = true;
    if (piece.type == PieceType::unknown) data.unk = data.missing_id = narrow<int32_t>(i);
    if (piece.type != PieceType::normal) continue;
    // A NaN cannot be ordered.
    if (std::isnan(piece.score)) fail(ErrorKind::model, "the token {} has no score", i);
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return pieces[a].score > pieces[b].score; });
  std::vector<std::string_view> ranked;
  ranked.reserve(order.size());
  for (const size_t i : order) ranked.push_back(pieces[i].text);
  data.merges = ranked_merges(ranked);
  if (add_dummy_prefix) {
    data.normalizer.push_back({NormalizerStep::Kind::prepend, {}, std::string(kSpaceMark)});
    data.leading_space = LeadingSpace::drop_one;
  }
  data.normalizer.push_back({NormalizerStep::Kind::replace, " ", std::string(kSpaceMark)});
  return data;
}

TokenizerData parse_sentencepiece(std::string_view bytes, const std::string& file_name) {
  const Model model = read_model(bytes, file_name);
  refuse_unsupported(model, file_name);
  try {
    TokenizerData data = sentencepiece_bpe(model.pieces, model.add_dummy_prefix);
    if (data.byte_fallback != model.byte_fallback) {
      fail(ErrorKind::model, "byte pieces and byte_fallback do not agree");
    }
    data.unk = narrow<int32_t>(model.unk);
    data.bos = narrow<int32_t>(model.bos);
    data.eos = narrow<int32_t>(model.eos);
    data.pad = narrow<int32_t>(model.pad);
    data.add_bos = data.bos >= 0;
    return data;
  } catch (const Error& error) {
    throw Error(ErrorKind::model, fmt::format("{}: {}", file_name, error.what()), error.hint());
  }
}

}  // namespace jackscrew
