// What a recipe's `model` names: a Hugging Face directory, a GGUF file, a config.json or a named
// shape.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "model/config.h"
#include "quant/stored_tensor.h"
#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// Whose files a tokenizer is from. Those of a model alone say which tokens its configuration means.
enum class TokenizerOwner : uint8_t { model, adapter, recipe };

struct ModelFiles {
  std::string origin;  // the path or name as given
  ModelConfig config;
  std::shared_ptr<WeightSource> source;  // null when only a shape was given
  std::vector<int64_t> end_tokens;       // of generation_config.json, beside those of `config`
  std::string tokenizer_origin;          // the directory or file that `tokenizer` is from
  TokenizerOwner tokenizer_owner = TokenizerOwner::model;
  std::optional<TokenizerData> tokenizer;  // absent when the model has none that can be used
  std::optional<Error> tokenizer_error;    // why the one in the files cannot be used

  // Whether it has the tokens of `tokenizer`; of the model's own one.
  bool has_tokens_of(const Tokenizer& other) const;
  bool has_own_tokens(const Tokenizer& other) const;
};

// Throws Error(model) naming what is missing or damaged. A tokenizer that cannot be used is no
// reason: much can be done without one. Where the directory of an `adapter` has a tokenizer, as
// trainers write it there, the adapter has learned by that, and it goes before the model's.
// `tokenizer` is a recipe's: of a path, the tokenizer there goes before both.
ModelFiles open_model(const std::string& model, const std::string& adapter = {},
                      const std::string& tokenizer = "auto");

// The same for texts alone: no weights are opened, and a directory with a tokenizer will do, or no
// `model` beside a `tokenizer`. Without a configuration vocab_size is 0.
ModelFiles open_tokenizer(const std::string& model, const std::string& adapter,
                          const std::string& tokenizer);

// A tensor of these files that must be there, of their source or of one in its place. Throws
// Error(model) naming the files where it is missing.
const StoredTensor& stored_tensor(const ModelFiles& files, const WeightSource& source,
                                  const std::string& name);

// The ready tokenizer of a recipe: `choice` is "auto" (the model's), "bytes" (ids are the 256
// byte values, then BOS and EOS), or the path that open_model() was given. Throws Error(model) when
// the model has none that can be used.
Tokenizer make_tokenizer(const std::string& choice, const ModelFiles& files);

// The vocabulary of tokenizer "bytes".
TokenizerData byte_tokenizer();

}  // namespace jackscrew
