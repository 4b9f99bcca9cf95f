// The tokenizer of a model, from whichever file holds it.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>

#include "formats/gguf.h"
#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// A template beside a tokenizer, or beside an adapter; it goes before the one in
// tokenizer_config.json.
inline constexpr const char* kChatTemplateFile = "chat_template.jinja";
// Of named templates: the general one, which goes before the file above, and the one for
// conversations with tools.
inline constexpr const char* kDefaultTemplateFile = "additional_chat_templates/default.jinja";
inline constexpr const char* kToolTemplateFile = "additional_chat_templates/tool_use.jinja";

// What a directory may hold of a tokenizer.
inline constexpr std::array<const char*, 8> kTokenizerFiles = {
    "tokenizer.json",    "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", kChatTemplateFile, kDefaultTemplateFile,    kToolTemplateFile};

// Reads tokenizer.json or, where there is none, tokenizer.model (SentencePiece's or Llama 3's) from
// a model directory, and the others of kTokenizerFiles where they exist.
// nullopt when the directory has neither of the first two. Throws Error(model).
std::optional<TokenizerData> read_tokenizer_directory(const std::filesystem::path& directory);

// The tokenizer that a path names: a directory with one, one of its two files (those beside it
// count as well), or a GGUF file. Throws Error(model) where there is none.
struct FoundTokenizer {
  std::filesystem::path origin;  // the directory or the GGUF file
  TokenizerData data;
};
FoundTokenizer read_tokenizer(const std::filesystem::path& path);

// Whether it has either of the two.
bool has_tokenizer(const std::filesystem::path& directory);

// The templates that a directory has, with a tokenizer or without, in place of `data`'s: those that
// are files or, where none is, those in its tokenizer_config.json. Where it has none, `data` stays
// as it is. Throws Error(model).
void apply_templates(TokenizerData& data, const std::filesystem::path& directory);

// `where` is for messages. Throws Error(model) when the tokenizer's model or pre-tokenizer is not
// known.
TokenizerData gguf_tokenizer_data(const GgufTokenizerMetadata& from, const std::string& where);

}  // namespace jackscrew
