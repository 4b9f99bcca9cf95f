#include "text/tokenizer/tokenizer_parts.h"

namespace jackscrew {

namespace {

using Json = nlohmann::json;

// Far above any published vocabulary; prevents a hostile id from reserving the machine's memory.
constexpr int64_t kMaxTokens = int64_t{1} << 22;

}  // namespace

bool is_null(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null();
}

bool flag(const Json& object, const char* key, bool fallback) {
  return is_null(object, key) ? fallback : object.at(key).get<bool>();
}

std::string text_of(const Json& object, const char* key) {
  return is_null(object, key) ? std::string() : object.at(key).get<std::string>();
}

int64_t integer_of(const Json& value) {
  if (!value.is_number_integer()) fail(ErrorKind::model, "{} is not an integer", value.dump());
  return value.get<int64_t>();
}

void fail_unsupported(const std::string& what) {
  throw Error(ErrorKind::model, what + " is not supported",
              "byte-level BPE and SentencePiece's BPE are");
}

int32_t token_id(const TokenizerData& data, std::string_view token, const char* role) {
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    const bool used = data.kinds.empty() || data.kinds[i] != TokenKind::unused;
    if (used && data.tokens[i] == token) return static_cast<int32_t>(i);
  }
  fail_missing_token(token, role);
}

void fail_missing_token(std::string_view token, const char* role) {
  fail(ErrorKind::model, "the {} \"{}\" is not in the vocabulary", role, token);
}

void set_token(TokenizerData& data, const std::string& token, int64_t id, TokenKind kind) {
  if (id < 0 || id >= kMaxTokens) fail(ErrorKind::model, "the token \"{}\" has id {}", token, id);
  const auto index = static_cast<size_t>(id);
  // `kinds` may be empty if all are normal; here each token needs its own.
  data.kinds.resize(data.tokens.size(), TokenKind::normal);
  if (index >= data.tokens.size()) {
    data.tokens.resize(index + 1);
    data.kinds.resize(index + 1, TokenKind::unused);
  }
  if (data.kinds[index] != TokenKind::unused && data.tokens[index] != token) {
    fail(ErrorKind::model, "the tokens \"{}\" and \"{}\" both have id {}", data.tokens[index],
         token, id);
  }
  data.tokens[index] = token;
  data.kinds[index] = kind;
}

void set_added_token(TokenizerData& data, const Json& description, int64_t id) {
  const auto content = description.at("content").get<std::string>();
  for (const char* key : {"single_word", "lstrip", "rstrip"}) {
    if (flag(description, key, false)) {
      fail_unsupported(fmt::format("the added token \"{}\" with {}", content, key));
    }
  }
  const bool special = flag(description, "special", false);
  set_token(data, content, id, special ? TokenKind::special : TokenKind::added);
  if (flag(description, "normalized", !special)) {
    data.normalized_literals.insert(static_cast<int32_t>(id));
  } else {
    data.normalized_literals.erase(static_cast<int32_t>(id));
  }
}

Json parse_object(std::string_view text, const std::string& file_name) {
  Json root = parse_json(text, file_name);
  if (!root.is_object()) fail(ErrorKind::model, "{}: an object was expected", file_name);
  return root;
}

}  // namespace jackscrew
