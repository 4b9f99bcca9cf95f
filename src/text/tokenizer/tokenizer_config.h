// The files beside a tokenizer.json or tokenizer.model, read as transformers 5 reads them
// (PreTrainedTokenizerBase._from_pretrained, TokenizersBackend.__init__).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// The file that holds the vocabulary.
enum class VocabularyFile : uint8_t { tokenizer_json, tokenizer_model };

// A file's text, and its name for messages.
struct NamedText {
  std::string name;
  std::string text;
};

// The files with more about a vocabulary's tokens, those that exist.
struct TokenizerConfigFiles {
  std::optional<NamedText> config;              // tokenizer_config.json
  std::optional<NamedText> special_tokens_map;  // special_tokens_map.json
  std::optional<NamedText> added_tokens;        // added_tokens.json
};

// Applies a tokenizer_config.json: added tokens that the vocabulary lacks or has differently; bos,
// eos, pad, unk and other named tokens; the chat templates. Named tokens become special; those that
// the vocabulary lacks get the next ids, except that a missing bos, eos or unk is an error.
//
// The other two files are from older programs and are read only if the first has no
// added_tokens_decoder: bos, eos and the other common names of special_tokens_map.json take
// precedence over those of tokenizer_config.json, and tokens of added_tokens.json beyond the
// vocabulary take the place of that decoder.
//
// Beside a tokenizer.json `add_bos_token` and `add_eos_token` are ignored, since that file itself
// says what goes before a text. Beside a tokenizer.model they are used. For SentencePiece's, the
// configuration also says where a space is added: with `legacy` (the default) before every text and
// after every special token, otherwise only at the beginning, and only if there is none.
//
// Throws Error(model), also where a token would get another id than the file gives it.
void apply_tokenizer_config(TokenizerData& data, const TokenizerConfigFiles& files,
                            VocabularyFile beside);

// Applies only the chat templates of a tokenizer_config.json, which replace `data`'s if there are
// any. Throws Error(model).
void apply_config_templates(TokenizerData& data, const NamedText& config);

}  // namespace jackscrew
