// The texts beside the weights of a result: configuration, tokenizer, chat template.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/file.h"
#include "session/model_files.h"
#include "text/chat/chat_template.h"

namespace jackscrew {

// Files as they are to be, by name.
using Texts = std::map<std::string, std::string>;
void write_texts(const Texts& texts, const fs::path& to);
int64_t bytes_of(const Texts& texts);

// config.json and generation_config.json. `torch_dtype` as write_hf_config() takes it.
Texts config_texts(const ModelFiles& files, const Tokenizer& tokenizer, const ChatFormat& format,
                   const std::string& torch_dtype);
// Of a model whose tokenizer cannot be used here.
Texts config_texts(const ModelFiles& files, const std::string& torch_dtype);

// The files of a tokenizer: the very ones that it was read from, where those are a directory's,
// else made from its data; and the template of `format` in place of others.
Texts tokenizer_texts(const ModelFiles& files, const Tokenizer& tokenizer,
                      const ChatFormat& format);
// Of one that cannot be used here, as they are.
Texts tokenizer_texts(const ModelFiles& files);

// The model's, with the special tokens of another tokenizer where it learned by that.
ModelConfig exported_config(const ModelFiles& files, const Tokenizer& tokenizer);

// A template as other programs are to run it: here BOS leads whether the template writes it or not.
std::string kept_template(const ChatFormat& format, const Tokenizer& tokenizer);

// The special token by which answers end; none where it is not known.
std::optional<int64_t> end_of_answers(const ChatFormat& format, const Tokenizer& tokenizer);

// The type that other programs are to compute in, where weights have these of safetensors' types.
const char* torch_dtype(const std::set<std::string_view>& dtypes);

}  // namespace jackscrew
