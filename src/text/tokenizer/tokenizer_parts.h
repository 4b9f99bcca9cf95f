// Shared by the readers of tokenizer.json and of the files beside it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json_object.h"
#include "formats/json_text.h"
#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// Getters for members that may be absent or null; a member of another type throws Json::exception.
bool is_null(const nlohmann::json& object, const char* key);
bool flag(const nlohmann::json& object, const char* key, bool fallback);
std::string text_of(const nlohmann::json& object, const char* key);  // empty where absent
// An integer written without a point or exponent, since others may be out of range. Throws
// Error(model).
int64_t integer_of(const nlohmann::json& value);

// Throws Error(model): `what` is not supported.
[[noreturn]] void fail_unsupported(const std::string& what);

// The id of the token with this spelling. Throws Error(model) where there is none, naming its
// `role`.
int32_t token_id(const TokenizerData& data, std::string_view token, const char* role);
[[noreturn]] void fail_missing_token(std::string_view token, const char* role);

// Gives `id` to a token and fills skipped ids with unused tokens. Throws Error(model) where another
// token has the id, and for an id larger than any vocabulary's.
void set_token(TokenizerData& data, const std::string& token, int64_t id, TokenKind kind);

// The same for a special or added token as tokenizer.json describes it. Throws Error(model) for
// tokens that absorb the spaces beside them or match whole words only.
void set_added_token(TokenizerData& data, const nlohmann::json& description, int64_t id);

// Parses a file's JSON object; `file_name` is for messages. Throws Error(model).
nlohmann::json parse_object(std::string_view text, const std::string& file_name);

// Runs `read`, adding the file's name to every parsing error.
template <typename Read>
void with_file_name(const std::string& file_name, const Read& read) {
  try {
    read();
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::model, "{}: {}", file_name, json_complaint(error.what()));
  } catch (const Error& error) {
    throw Error(ErrorKind::model, fmt::format("{}: {}", file_name, error.what()), error.hint());
  }
}

}  // namespace jackscrew
