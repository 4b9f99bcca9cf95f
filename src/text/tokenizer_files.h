// The tokenizer of a model, from whichever file holds it.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>

#include "formats/gguf.h"
#include "text/tokenizer.h"

namespace jackscrew {

// A template beside a tokenizer, or beside an adapter; it goes before the one in
// tokenizer_config.json.
inline constexpr const char* kChatTemplateFile = "chat_template.jinja";

// What a directory may hold of a tokenizer.
inline constexpr std::array<const char*, 6> kTokenizerFiles = {
    "tokenizer.json",          "tokenizer.model",   "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", kChatTemplateFile};

// Reads tokenizer.json or, where there is none, tokenizer.model (SentencePiece's or Llama 3's) from
// a model directory, and beside it tokenizer_config.json and chat_template.jinja where they exist.
// nullopt when the directory has neither of the first two. Throws Error(model).
std::optional<TokenizerData> read_tokenizer_directory(const std::filesystem::path& directory);

// `where` is for messages. Throws Error(model) when the tokenizer's model or pre-tokenizer is not
// known.
TokenizerData gguf_tokenizer_data(const GgufTokenizerMetadata& from, const std::string& where);

}  // namespace jackscrew
