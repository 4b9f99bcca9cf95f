// Reads the tokenizer of a model, from whichever file holds it.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "formats/gguf_llama.h"
#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// A template beside a tokenizer or an adapter; it takes precedence over the one in
// tokenizer_config.json.
inline constexpr const char* kChatTemplateFile = "chat_template.jinja";
// Named templates: the general one, which takes precedence over the file above, and the one for
// conversations with tools.
inline constexpr const char* kDefaultTemplateFile = "additional_chat_templates/default.jinja";
inline constexpr const char* kToolTemplateFile = "additional_chat_templates/tool_use.jinja";

// All files of a tokenizer that a directory may hold.
inline constexpr std::array<const char*, 8> kTokenizerFiles = {
    "tokenizer.json",    "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", kChatTemplateFile, kDefaultTemplateFile,    kToolTemplateFile};

// Those that one has, by name. Throws Error(model) where one cannot be read.
using TokenizerTexts = std::map<std::string, std::string>;
TokenizerTexts read_tokenizer_texts(const std::filesystem::path& directory);

// The tokenizer of tokenizer.json or, if there is none, tokenizer.model (SentencePiece's or
// Llama 3's), and of the files beside it. nullopt where there is neither. `directory` is for
// messages. Throws Error(model).
std::optional<TokenizerData> parse_tokenizer_texts(const TokenizerTexts& texts,
                                                   const std::filesystem::path& directory);

// Reads the tokenizer that a path names: a directory with one, one of its two files (the files
// beside it are read too), or a GGUF file. Throws Error(model) where there is none.
struct FoundTokenizer {
  std::filesystem::path origin;  // the directory or the GGUF file
  TokenizerData data;
  TokenizerTexts texts;  // of a directory
};
FoundTokenizer read_tokenizer(const std::filesystem::path& path);

// Whether the directory has tokenizer.json or tokenizer.model.
bool has_tokenizer(const std::filesystem::path& directory);

// Replaces `data`'s templates by those of a directory, with or without a tokenizer: template files
// or, if there are none, those in its tokenizer_config.json. Without any, `data` stays as it is.
// Throws Error(model).
void apply_templates(TokenizerData& data, const std::filesystem::path& directory);

// What to do about a tokenizer of a GGUF file that cannot be used.
inline constexpr const char* kGiveOwnTokenizer = "give its own tokenizer: tokenizer=DIR";

// `where` is for messages. Throws Error(model) for an unknown tokenizer model or pre-tokenizer,
// Error(does_not_fit) where a memory limit does not leave what a Tokenizer of it takes.
TokenizerData gguf_tokenizer_data(const GgufTokenizerMetadata& from, const std::string& where);

}  // namespace jackscrew
