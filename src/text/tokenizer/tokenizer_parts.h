// What the readers of tokenizer.json and of the files beside it have in common.
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

// Getters for members that may be absent or null; those of another type are a Json::exception.
bool is_null(const nlohmann::json& object, const char* key);
bool flag(const nlohmann::json& object, const char* key, bool fallback);
std::string text_of(const nlohmann::json& object, const char* key);  // empty where absent
// A number with a point or an exponent is none: it may lie beyond every integer. Throws
// Error(model).
int64_t integer_of(const nlohmann::json& value);

// Throws Error(model): `what` is not supported.
[[noreturn]] void fail_unsupported(const std::string& what);

// The id of the token that is written so. Throws Error(model) where there is none, naming the
// `role` that it has.
int32_t token_id(const TokenizerData& data, std::string_view token, const char* role);
[[noreturn]] void fail_missing_token(std::string_view token, const char* role);

// Gives `id` to a token, with unused ones for the ids that are skipped. Throws Error(model) where
// another token has it, and for an id that no vocabulary has.
void set_token(TokenizerData& data, const std::string& token, int64_t id, TokenKind kind);

// The same for a special or added token as tokenizer.json describes it. Throws Error(model) where
// it takes the spaces beside it or is matched as a word only.
void set_added_token(TokenizerData& data, const nlohmann::json& description, int64_t id);

// The object in a file; its `file_name` is for messages. Throws Error(model).
nlohmann::json parse_object(std::string_view text, const std::string& file_name);

// Runs `read`, giving every failure of parsing the file's name.
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
