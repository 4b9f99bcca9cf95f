// The files beside a tokenizer.json or tokenizer.model, read as transformers 5 reads them
// (PreTrainedTokenizerBase._from_pretrained, TokenizersBackend.__init__).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace jackscrew {

// The file that holds the vocabulary.
enum class VocabularyFile : uint8_t { tokenizer_json, tokenizer_model };

// Adds what a tokenizer_config.json says: added tokens that the vocabulary lacks or has otherwise;
// bos, eos, pad, unk; the chat templates. Named tokens become special ones; those that the
// vocabulary lacks get the next ids, but without bos, eos and unk it is refused.
//
// Beside a tokenizer.json `add_bos_token` and `add_eos_token` count for nothing, for that file says
// itself what goes before a text. Beside a tokenizer.model they do; and of SentencePiece's it says
// where a space goes before a text: with `legacy` (the default) before every text and behind every
// special token, without it only at the beginning and only where there is none.
//
// Throws Error(model), also where a token would get another id than the file gives it.
void apply_tokenizer_config(TokenizerData& data, std::string_view text,
                            const std::string& file_name, VocabularyFile beside);

// What older programs wrote into special_tokens_map.json and added_tokens.json as a part of
// `config`, the text of a tokenizer_config.json: the tokens that the first names go before those of
// `config`, those of the second that `data` has not become its added_tokens_decoder. Where `config`
// has one already, neither counts and `config` is returned as it is. Throws Error(model).
std::string with_special_tokens_map(const std::string& config, std::string_view text,
                                    const std::string& file_name);
std::string with_added_tokens(const std::string& config, const TokenizerData& data,
                              std::string_view text, const std::string& file_name);

}  // namespace jackscrew
