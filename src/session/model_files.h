// What a recipe's `model` names: a Hugging Face directory, a GGUF file, a config.json or a named
// shape.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "model/config.h"
#include "quant/stored_tensor.h"
#include "quant/weight_spec.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_files.h"

namespace jackscrew {

// Whose tokens a tokenizer has: only the model's own are those that its configuration means,
// whether the file is the model's or a copy beside an adapter.
enum class TokenizerOwner : uint8_t { model, adapter, recipe };

struct ModelFiles {
  std::string origin;  // the path or name as given
  ModelConfig config;
  std::shared_ptr<WeightSource> source;  // null when only a shape was given
  std::vector<int64_t> end_tokens;       // of generation_config.json, beside those of `config`
  std::optional<std::string> generation_config;  // its text, of a directory
  std::string tokenizer_origin;                  // the directory or file that `tokenizer` is from
  // The files of that directory, as they were read: they may change while a run lasts.
  TokenizerTexts tokenizer_texts;
  TokenizerOwner tokenizer_owner = TokenizerOwner::model;
  bool lends_templates = false;  // `tokenizer` has the model's, which that place lacks
  // Null when the model has none that can be used. Shared with the Tokenizer that is made of it.
  std::shared_ptr<const TokenizerData> tokenizer;
  std::optional<Error> tokenizer_error;  // why the one in the files cannot be used

  // Whether `tokenizer` is present and has the same tokens as `other`; has_own_tokens() also
  // requires that it is the model's own.
  bool has_tokens_of(const Tokenizer& other) const;
  bool has_own_tokens(const Tokenizer& other) const;
  // Whether a directory has files of a tokenizer that could not be read: what is in them is
  // unknown.
  bool has_unread_tokenizer() const;
};

// Opens a model. Throws Error(model) naming what is missing or damaged, but not for a tokenizer
// that cannot be used: much can be done without one. A tokenizer in the directory of `adapter`,
// where trainers write it, is the one that the adapter has learned with, and replaces the model's;
// only the chat templates stay the model's where the tokens are the same and none is there: the
// model's tokenizer must then be one that can be read.
// `tokenizer` is the recipe's option: if it is a path, the tokenizer there replaces both.
ModelFiles open_model(const std::string& model, const std::string& adapter = {},
                      const std::string& tokenizer = "auto");

// Whether the recipe's `tokenizer` is the path of one.
bool is_tokenizer_path(const std::string& tokenizer);

// Opens what texts need of a model, but no weights. A directory with only a tokenizer suffices, and
// `model` may be empty if `tokenizer` is given. Without a configuration, vocab_size is 0.
ModelFiles open_tokenizer(const std::string& model, const std::string& adapter,
                          const std::string& tokenizer);

// The tensor of a weight, which must exist in `source`: the files' own or one that stands in for
// it. Throws Error(model) naming the files where it is missing.
const StoredTensor& stored_tensor(const ModelFiles& files, const WeightSource& source,
                                  const WeightSpec& weight);

// The same, which must also have the weight's shape, after use(tensor), if given.
// Throws Error(model) naming the files where it is missing or has another shape, and where `use`
// finds it damaged.
const StoredTensor& checked_tensor(const ModelFiles& files, const WeightSource& source,
                                   const WeightSpec& weight);
const StoredTensor& checked_tensor(const ModelFiles& files, const WeightSource& source,
                                   const WeightSpec& weight,
                                   const std::function<void(const StoredTensor&)>& use);

// The bytes of the tensors of the model that its files have: they may hold others.
int64_t stored_bytes(const ModelFiles& files);

// Warns of tensors in the files that the model has no place for, and which are lost. Not of what
// means nothing: biases of 0, a tied head, tables of rotations, scales of activations and caches.
void warn_of_unused_tensors(const ModelFiles& files);

// Makes the tokenizer of a recipe: `choice` is "auto" (the one in `files`), "bytes" (ids are the
// 256 byte values, then BOS and EOS), or the path that open_model() was given. Throws Error(model)
// when there is none that can be used, or it has more tokens than the model.
Tokenizer make_tokenizer(const std::string& choice, const ModelFiles& files);

// The vocabulary of tokenizer "bytes".
TokenizerData byte_tokenizer();

}  // namespace jackscrew
