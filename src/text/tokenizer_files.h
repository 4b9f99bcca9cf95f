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
// The same for conversations with tools, where they have a template of their own.
inline constexpr const char* kToolTemplateFile = "additional_chat_templates/tool_use.jinja";

// What a directory may hold of a tokenizer.
inline constexpr std::array<const char*, 7> kTokenizerFiles = {
    "tokenizer.json",    "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", kChatTemplateFile, kToolTemplateFile};

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

// The templates that a directory has as files, in place of `data`'s: together they are all there
// are. Where it has neither, `data` stays as it is.
void apply_template_files(TokenizerData& data, const std::filesystem::path& directory);
bool has_template_files(const std::filesystem::path& directory);

// `where` is for messages. Throws Error(model) when the tokenizer's model or pre-tokenizer is not
// known.
TokenizerData gguf_tokenizer_data(const GgufTokenizerMetadata& from, const std::string& where);

}  // namespace jackscrew
