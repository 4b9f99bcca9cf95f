#include "text/tokenizer/tokenizer_files.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "base/checked.h"
#include "base/directory.h"
#include "base/error.h"
#include "base/file.h"
#include "base/process_memory.h"
#include "text/tokenizer/sentencepiece.h"
#include "text/tokenizer/tiktoken.h"
#include "text/tokenizer/tokenizer_config.h"
#include "text/tokenizer/tokenizer_json.h"
#include "text/utf8.h"

namespace jackscrew {

namespace {

// Number of tokens in Llama 3's own file; Llama 4's has the same form, but other tokens and another
// pattern.
constexpr size_t kLlama3Tokens = 128000 + 256;

TokenizerData parse_model_file(const std::string& bytes, const fs::path& path) {
  if (!is_tiktoken(bytes)) return parse_sentencepiece(bytes, path.string());
  TokenizerData data = parse_tiktoken(bytes, path.string());
  if (data.tokens.size() != kLlama3Tokens) {
    throw Error(ErrorKind::model,
                fmt::format("{}: a tiktoken file of {} tokens is not supported", path.string(),
                            data.tokens.size() - 256),
                "Llama 3's, of 128000, is; others need a tokenizer.json");
  }
  return data;
}

constexpr const char* kConfigFile = "tokenizer_config.json";
constexpr std::array<const char*, 4> kFilesOfTemplates = {kConfigFile, kChatTemplateFile,
                                                          kDefaultTemplateFile, kToolTemplateFile};

TokenizerTexts read_texts(const fs::path& directory, std::span<const char* const> names) {
  TokenizerTexts texts;
  for (const char* name : names) {
    if (is_there(directory / name)) texts[name] = read_text(directory / name);
  }
  return texts;
}

// `directory` is for messages, here and below.
std::optional<NamedText> named_text(const TokenizerTexts& texts, const fs::path& directory,
                                    const char* name) {
  const auto found = texts.find(name);
  if (found == texts.end()) return std::nullopt;
  return NamedText{(directory / name).string(), found->second};
}

void apply_template_files(TokenizerData& data, const TokenizerTexts& texts,
                          const fs::path& directory) {
  auto chat = named_text(texts, directory, kDefaultTemplateFile);
  if (!chat) chat = named_text(texts, directory, kChatTemplateFile);
  const auto tools = named_text(texts, directory, kToolTemplateFile);
  if (!chat && !tools) return;
  data.tool_template = tools ? tools->text : "";
  if (chat) data.chat_template = chat->text;
}

// Applies the files beside a vocabulary.
void apply_files_beside(TokenizerData& data, const TokenizerTexts& texts, const fs::path& directory,
                        VocabularyFile vocabulary) {
  const auto named = [&](const char* name) { return named_text(texts, directory, name); };
  apply_tokenizer_config(data,
                         {.config = named(kConfigFile),
                          .special_tokens_map = named("special_tokens_map.json"),
                          .added_tokens = named("added_tokens.json")},
                         vocabulary);
  apply_template_files(data, texts, directory);
}

TokenizerData sentencepiece_data(const GgufTokenizerMetadata& from) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < from.tokens.size(); ++i) {
    Piece piece{from.tokens[i]};
    if (!from.scores.empty()) piece.score = from.scores[i];
    if (!from.token_types.empty()) piece.type = static_cast<PieceType>(from.token_types[i]);
    pieces.push_back(std::move(piece));
  }
  TokenizerData data = sentencepiece_bpe(pieces, from.add_space_prefix.value_or(true));
  if (!from.merges.empty()) data.merges.clear();
  return data;
}

// Whether texts begin with BOS where a GGUF file has one and does not say: what llama.cpp does with
// SentencePiece, and with byte-level BPE by the name of the pre-tokenizer.
bool adds_bos_by_default(const GgufTokenizerMetadata& from) {
  constexpr std::array<std::string_view, 6> kWithBos = {"llama-bpe", "llama3",  "llama-v3",
                                                        "falcon3",   "pixtral", "tekken"};
  return from.model == "llama" || std::ranges::find(kWithBos, from.pre) != kWithBos.end();
}

// Whether the token stands for several bytes, each of which is a character here: only a merge makes
// such a one.
bool needs_merge(const TokenizerData& data, size_t id) {
  const std::string& token = data.tokens[id];
  const bool is_normal = data.kinds.empty() || data.kinds[id] == TokenKind::normal;
  return is_normal && !token.empty() && utf8_step(token, 0).length < token.size();
}

TokenizerData byte_level_data(const GgufTokenizerMetadata& from) {
  TokenizerData data;
  data.tokens = from.tokens;
  for (const int64_t type : from.token_types) {
    data.kinds.push_back(token_kind(static_cast<PieceType>(type)));
  }
  data.set_pre_tokenizer(from.pre.empty() ? "default" : from.pre);
  for (size_t id = 0; id < data.tokens.size() && from.merges.empty(); ++id) {
    if (!needs_merge(data, id)) continue;
    fail(ErrorKind::model,
         "tokenizer.ggml.merges is missing, so that the token \"{}\" would never be used",
         data.tokens[id]);
  }
  return data;
}

TokenizerData data_of_gguf(const GgufTokenizerMetadata& from) {
  const bool sentencepiece = from.model == "llama";
  if (!sentencepiece && from.model != "gpt2") {
    throw Error(ErrorKind::model,
                fmt::format("tokenizer model \"{}\" is not supported", from.model),
                "\"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece's BPE) are");
  }
  TokenizerData data = sentencepiece ? sentencepiece_data(from) : byte_level_data(from);
  for (const std::string& merge : from.merges) data.merges.push_back(parse_merge(merge));
  data.bos = narrow<int32_t>(from.bos_id);
  data.eos = narrow<int32_t>(from.eos_id);
  data.pad = narrow<int32_t>(from.pad_id);
  if (from.unk_id >= 0 || !sentencepiece) data.unk = narrow<int32_t>(from.unk_id);
  data.missing_id = data.unk;
  data.add_bos = from.add_bos.value_or(data.bos >= 0 && adds_bos_by_default(from));
  data.add_eos = from.add_eos.value_or(false);
  data.chat_template = from.chat_template;
  data.tool_template = from.tool_template;
  return data;
}

}  // namespace

bool has_tokenizer(const fs::path& directory) {
  return is_there(directory / "tokenizer.json") || is_there(directory / "tokenizer.model");
}

void apply_templates(TokenizerData& data, const fs::path& directory) {
  const TokenizerTexts texts = read_texts(directory, kFilesOfTemplates);
  if (const auto config = named_text(texts, directory, kConfigFile)) {
    apply_config_templates(data, *config);
  }
  apply_template_files(data, texts, directory);
}

TokenizerTexts read_tokenizer_texts(const fs::path& directory) {
  return read_texts(directory, kTokenizerFiles);
}

std::optional<TokenizerData> parse_tokenizer_texts(const TokenizerTexts& texts,
                                                   const fs::path& directory) {
  TokenizerData data;
  if (const auto json = texts.find("tokenizer.json"); json != texts.end()) {
    data = parse_tokenizer_json(json->second, (directory / json->first).string());
    apply_files_beside(data, texts, directory, VocabularyFile::tokenizer_json);
  } else if (const auto model = texts.find("tokenizer.model"); model != texts.end()) {
    data = parse_model_file(model->second, directory / model->first);
    apply_files_beside(data, texts, directory, VocabularyFile::tokenizer_model);
  } else {
    return std::nullopt;
  }
  return data;
}

TokenizerData gguf_tokenizer_data(const GgufTokenizerMetadata& from, const std::string& where) {
  // The vocabulary and the tokenizer that is made of it: 370 bytes a token, of 400,000 of them.
  constexpr int64_t kOfToken = 400;
  require_memory(checked_mul(std::ssize(from.tokens), kOfToken), "the tokenizer in " + where,
                 "close other programs, or raise the limit");
  try {
    return data_of_gguf(from);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", where, error.what()),
                error.hint().empty() ? kGiveOwnTokenizer : error.hint());
  }
}

FoundTokenizer read_tokenizer(const fs::path& path) {
  constexpr const char* kHint =
      "give a directory with a tokenizer.json or a tokenizer.model, such a file, or a GGUF file; "
      "or tokenizer=bytes";
  if (!is_there(path, ErrorKind::model)) {
    throw Error(ErrorKind::model, fmt::format("tokenizer {} does not exist", path.string()), kHint);
  }
  const std::string name = path.filename().string();
  const bool is_file = name == "tokenizer.json" || name == "tokenizer.model";
  if (fs::is_directory(path) || is_file) {
    fs::path directory = is_file ? path.parent_path() : path;
    if (directory.empty()) directory = ".";
    TokenizerTexts texts = read_tokenizer_texts(directory);
    if (auto data = parse_tokenizer_texts(texts, directory)) {
      return {directory, std::move(*data), std::move(texts)};
    }
  } else if (is_gguf_file(path)) {
    const GgufFile file(path);
    const GgufTokenizerMetadata metadata = gguf_tokenizer(file);
    if (!metadata.model.empty()) return {path, gguf_tokenizer_data(metadata, path.string()), {}};
  }
  throw Error(ErrorKind::model, fmt::format("there is no tokenizer in {}", path.string()), kHint);
}

}  // namespace jackscrew
