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

// Those that say more of a vocabulary's tokens, each where it is there.
struct TokenizerConfigFiles {
  std::optional<NamedText> config;              // tokenizer_config.json
  std::optional<NamedText> special_tokens_map;  // special_tokens_map.json
  std::optional<NamedText> added_tokens;        // added_tokens.json
};

// Adds what a tokenizer_config.json says: added tokens that the vocabulary lacks or has otherwise;
// bos, eos, pad, unk; the chat templates. Named tokens become special ones; those that the
// vocabulary lacks get the next ids, but without bos, eos and unk it is refused.
//
// The other two are of older programs and count where the first has no added_tokens_decoder: the
// tokens that special_tokens_map.json names go before those of tokenizer_config.json, and what
// added_tokens.json has beyond the vocabulary stands for that decoder.
//
// Beside a tokenizer.json `add_bos_token` and `add_eos_token` count for nothing, for that file says
// itself what goes before a text. Beside a tokenizer.model they do; and of SentencePiece's it says
// where a space goes before a text: with `legacy` (the default) before every text and behind every
// special token, without it only at the beginning and only where there is none.
//
// Throws Error(model), also where a token would get another id than the file gives it.
void apply_tokenizer_config(TokenizerData& data, const TokenizerConfigFiles& files,
                            VocabularyFile beside);

// The chat templates of a tokenizer_config.json alone, in place of `data`'s where it has any.
// Throws Error(model).
void apply_config_templates(TokenizerData& data, const NamedText& config);

}  // namespace jackscrew
