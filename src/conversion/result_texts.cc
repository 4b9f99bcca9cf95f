#include "conversion/result_texts.h"

#include <algorithm>

#include "base/checked.h"
#include "formats/hf_config.h"
#include "text/tokenizer/tokenizer_files.h"
#include "text/tokenizer/tokenizer_json.h"

namespace jackscrew {

namespace {

// The model's own generation_config.json, which may list more end tokens than config.json does, or
// a generated one; either also gets the token that ends answers.
std::string generation_config(const ModelFiles& files, const Tokenizer& tokenizer,
                              const ChatFormat& format) {
  const std::optional<int64_t> end = end_of_answers(format, tokenizer);
  if (files.has_own_tokens(tokenizer) && files.generation_config) {
    const std::string& text = *files.generation_config;
    if (const auto with_end = end ? add_end_token(text, *end) : text) return *with_end;
  }
  ModelConfig config = exported_config(files, tokenizer);
  std::vector<int64_t>& ends = config.eos_token_ids;
  if (end && std::find(ends.begin(), ends.end(), *end) == ends.end()) ends.push_back(*end);
  return write_hf_generation_config(config);
}

}  // namespace

std::optional<WrittenTemplates> other_templates(const ChatFormat& format,
                                                const Tokenizer& tokenizer) {
  const TokenizerData& own = tokenizer.data();
  const std::string &general = format.general.source, &tools = format.tools.source;
  const bool keeps_tools = tools == own.tool_template || format.tools.refusal;
  if (general.empty() || (general == own.chat_template && keeps_tools)) return std::nullopt;
  const auto written = [&](const std::string& source, const std::string& before) {
    const bool adds = !source.empty() && source != before && tokenizer.add_bos() &&
                      source.find("bos_token") == std::string::npos;
    return (adds ? "{{- bos_token }}" : "") + source;
  };
  return WrittenTemplates{written(general, own.chat_template), written(tools, own.tool_template)};
}

std::optional<int64_t> end_of_answers(const ChatFormat& format, const Tokenizer& tokenizer) {
  const Message turns[] = {{"user", "a"}, {"assistant", "b"}};
  EncodedSegments encoded;
  try {
    encoded = encode_segments(tokenizer, render_chat(format, turns).segments);
  } catch (const Error&) {  // the template cannot be used, or not for such a conversation
    return std::nullopt;
  }
  for (size_t i = encoded.ids.size(); i-- > 0;) {
    if (encoded.trained[i] == 0) continue;
    const bool special = tokenizer.kind(encoded.ids[i]) == TokenKind::special;
    return special ? std::optional<int64_t>(encoded.ids[i]) : std::nullopt;
  }
  return std::nullopt;
}

ModelConfig exported_config(const ModelFiles& files, const Tokenizer& tokenizer) {
  ModelConfig config = files.config;
  if (files.has_own_tokens(tokenizer)) return config;
  config.bos_token_id = tokenizer.bos();
  config.pad_token_id = tokenizer.data().pad;
  config.eos_token_ids.clear();
  if (tokenizer.eos() >= 0) config.eos_token_ids.push_back(tokenizer.eos());
  return config;
}

void write_texts(const Texts& texts, const fs::path& to) {
  for (const auto& [name, text] : texts) {
    const fs::path below = fs::path(name).parent_path();
    if (!below.empty()) make_directory(to / below);
    write_text_atomic(to / name, text);
  }
}

int64_t bytes_of(const Texts& texts) {
  int64_t bytes = 0;
  for (const auto& [name, text] : texts) bytes = checked_add(bytes, std::ssize(text));
  return bytes;
}

Texts tokenizer_texts(const ModelFiles& files, const Tokenizer& tokenizer,
                      const ChatFormat& format) {
  Texts texts;
  if (files.has_tokens_of(tokenizer) && !files.tokenizer_texts.empty()) {
    texts = files.tokenizer_texts;
    if (files.lends_templates) {
      texts[kChatTemplateFile] = tokenizer.data().chat_template;
      const std::string& tools = tokenizer.data().tool_template;
      if (!tools.empty()) texts[kToolTemplateFile] = tools;
    }
  } else {
    texts["tokenizer.json"] = to_tokenizer_json(tokenizer.data());
    texts["tokenizer_config.json"] = to_tokenizer_config_json(tokenizer.data());
  }
  const auto templates = other_templates(format, tokenizer);
  if (!templates) return texts;
  for (const char* name : {kDefaultTemplateFile, kToolTemplateFile}) texts.erase(name);
  texts[kChatTemplateFile] = templates->general;
  if (!templates->tools.empty()) texts[kToolTemplateFile] = templates->tools;
  return texts;
}

const char* torch_dtype(const WeightTypes& types) {
  const std::set<std::string_view>& matrices = types.block_matrices;
  if (matrices.contains("F32")) return "float32";
  const std::set<std::string_view>& dtypes = matrices.empty() ? types.others : matrices;
  return dtypes.contains("BF16") ? "bfloat16" : dtypes.contains("F16") ? "float16" : "float32";
}

Texts config_texts(const ModelFiles& files, const Tokenizer& tokenizer, const ChatFormat& format,
                   const std::string& torch_dtype) {
  return {{"config.json", write_hf_config(exported_config(files, tokenizer), torch_dtype)},
          {kGenerationConfig, generation_config(files, tokenizer, format)}};
}

Texts config_texts(const ModelFiles& files, const std::string& torch_dtype) {
  return {{"config.json", write_hf_config(files.config, torch_dtype)},
          {kGenerationConfig, files.generation_config ? *files.generation_config
                                                      : write_hf_generation_config(files.config)}};
}

Texts tokenizer_texts(const ModelFiles& files) {
  if (files.has_unread_tokenizer()) throw Error(*files.tokenizer_error);
  return files.tokenizer_texts;
}

}  // namespace jackscrew
