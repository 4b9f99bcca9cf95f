// The text files beside the weights of a result: configuration, tokenizer, chat template.
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

// File name -> contents.
using Texts = std::map<std::string, std::string>;
// `to` must be there: one that was lost had more in it than these.
void write_texts(const Texts& texts, const fs::path& to);
int64_t bytes_of(const Texts& texts);

// config.json and generation_config.json. `torch_dtype` is as for write_hf_config().
Texts config_texts(const ModelFiles& files, const Tokenizer& tokenizer, const ChatFormat& format,
                   const std::string& torch_dtype);
// The same for a model whose tokenizer cannot be used here.
Texts config_texts(const ModelFiles& files, const std::string& torch_dtype);

// The files of a tokenizer: copies where it was read from a directory, else made from its data; and
// the templates of `format`, in place of others, where they differ.
Texts tokenizer_texts(const ModelFiles& files, const Tokenizer& tokenizer,
                      const ChatFormat& format);
// The files of a tokenizer that cannot be used here, as they are.
Texts tokenizer_texts(const ModelFiles& files);

// The model's configuration; the special tokens are the tokenizer's where it is another than the
// model's own.
ModelConfig exported_config(const ModelFiles& files, const Tokenizer& tokenizer);

// The sources of chat templates, for other programs; empty where there is none.
struct WrittenTemplates {
  std::string general, tools;
};
// The templates of `format`; nullopt where the tokenizer's own stay. Templates in place of its own
// write BOS where this program would add it by itself.
std::optional<WrittenTemplates> other_templates(const ChatFormat& format,
                                                const Tokenizer& tokenizer);

// The special token by which answers end; none where it is not known.
std::optional<int64_t> end_of_answers(const ChatFormat& format, const Tokenizer& tokenizer);

// The safetensors types of a model's weights; those without one are not in it.
struct WeightTypes {
  std::set<std::string_view> block_matrices, others;

  void add(std::string_view type, bool is_block_matrix) {
    (is_block_matrix ? block_matrices : others).insert(type);
  }
};
// The type to which other programs bring the weights to compute: one that rounds no matrix of a
// block. Where all of those are quantised the others say it.
const char* torch_dtype(const WeightTypes& types);

}  // namespace jackscrew
