#include "train/export.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "base/checked.h"
#include "formats/hf_config.h"
#include "formats/safetensors.h"
#include "text/tokenizer/tokenizer_files.h"
#include "text/tokenizer/tokenizer_json.h"
#include "train/output_dir.h"

namespace jackscrew {

namespace {

// A template as other programs are to run it: here BOS leads whether the template writes it or not.
std::string kept_template(const ChatFormat& format, const Tokenizer& tokenizer) {
  const bool adds =
      tokenizer.add_bos() && format.general.source.find("bos_token") == std::string::npos;
  return (adds ? "{{- bos_token }}" : "") + format.general.source;
}

// The special token by which answers end; none where it is not known.
std::optional<int64_t> end_of_answers(const ChatFormat& format, const Tokenizer& tokenizer) {
  const Message turns[] = {{"user", "a"}, {"assistant", "b"}};
  EncodedSegments encoded;
  try {
    encoded = encode_segments(tokenizer, render_chat(format, turns).segments);
  } catch (const Error&) {  // a template that cannot be used, or not for such a conversation
    return std::nullopt;
  }
  for (size_t i = encoded.ids.size(); i-- > 0;) {
    if (encoded.trained[i] == 0) continue;
    const bool special = tokenizer.kind(encoded.ids[i]) == TokenKind::special;
    return special ? std::optional<int64_t>(encoded.ids[i]) : std::nullopt;
  }
  return std::nullopt;
}

// The model's, with the special tokens of another tokenizer where it learned by that.
ModelConfig exported_config(const ModelFiles& files, const Tokenizer& tokenizer) {
  ModelConfig config = files.config;
  if (files.has_own_tokens(tokenizer)) return config;
  config.bos_token_id = tokenizer.bos();
  config.pad_token_id = tokenizer.data().pad;
  config.eos_token_ids.clear();
  if (tokenizer.eos() >= 0) config.eos_token_ids.push_back(tokenizer.eos());
  return config;
}

// The model's own, which may end texts by more tokens than config.json does, or a made one; either
// ends them by what ends answers, too.
std::string generation_config(const ModelFiles& files, const Tokenizer& tokenizer,
                              const ChatFormat& format) {
  const fs::path own = fs::path(files.origin) / kGenerationConfig;
  const std::optional<int64_t> end = end_of_answers(format, tokenizer);
  if (files.has_own_tokens(tokenizer) && fs::is_directory(files.origin) && fs::exists(own)) {
    const std::string text = read_text(own);
    if (const auto with_end = end ? add_end_token(text, *end) : text) return *with_end;
  }
  ModelConfig config = exported_config(files, tokenizer);
  std::vector<int64_t>& ends = config.eos_token_ids;
  if (end && std::find(ends.begin(), ends.end(), *end) == ends.end()) ends.push_back(*end);
  return write_hf_generation_config(config);
}

// Files as they are to be, by name.
using Texts = std::map<std::string, std::string>;

void write_texts(const Texts& texts, const fs::path& to) {
  for (const auto& [name, text] : texts) {
    make_directories((to / name).parent_path());
    write_text_atomic(to / name, text);
  }
}

int64_t bytes_of(const Texts& texts) {
  int64_t bytes = 0;
  for (const auto& [name, text] : texts) bytes = checked_add(bytes, std::ssize(text));
  return bytes;
}

// The files of a tokenizer: the very ones that it was read from, where those are a directory's,
// else made from its data; and the template of `format` in place of others.
Texts tokenizer_texts(const ModelFiles& files, const Tokenizer& tokenizer,
                      const ChatFormat& format) {
  Texts texts;
  const fs::path from(files.tokenizer_origin);
  if (files.has_tokens_of(tokenizer) && fs::is_directory(from)) {
    for (const char* name : kTokenizerFiles) {
      if (fs::exists(from / name)) texts[name] = read_text(from / name);
    }
  } else {
    texts["tokenizer.json"] = to_tokenizer_json(tokenizer.data());
    texts["tokenizer_config.json"] = to_tokenizer_config_json(tokenizer.data());
  }
  const std::string& source = format.general.source;
  if (source.empty() || source == tokenizer.data().chat_template) return texts;
  texts[kChatTemplateFile] = kept_template(format, tokenizer);
  for (const char* name : {kDefaultTemplateFile, kToolTemplateFile}) texts.erase(name);
  return texts;
}

// The type that other programs are to compute in.
const char* torch_dtype(std::span<const SafetensorsSpec> specs) {
  const auto any = [&](std::string_view dtype) {
    return std::any_of(specs.begin(), specs.end(),
                       [&](const SafetensorsSpec& spec) { return spec.dtype == dtype; });
  };
  return any("BF16") ? "bfloat16" : any("F16") ? "float16" : "float32";
}

Texts config_texts(const ModelFiles& files, const Tokenizer& tokenizer, const ChatFormat& format,
                   std::span<const SafetensorsSpec> specs) {
  return {{"config.json", write_hf_config(exported_config(files, tokenizer), torch_dtype(specs))},
          {kGenerationConfig, generation_config(files, tokenizer, format)}};
}

void export_model(ResultSource& source, const ModelFiles& files, const Tokenizer& tokenizer,
                  const ChatFormat& format, const fs::path& to) {
  const std::vector<SafetensorsSpec> specs = source.weights();
  write_texts(config_texts(files, tokenizer, format, specs), to);
  ShardedSafetensorsWriter writer(to, specs);
  for (const SafetensorsSpec& spec : specs) {
    source.write_weight(spec.name, [&](std::span<const uint8_t> bytes) {
      writer.write(spec.name, bytes);
    });
  }
  writer.close();
}

// What an earlier result has and this one does not would be read as a part of it.
void remove_others(const fs::path& result, const fs::path& from) {
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(from)) {
    const fs::path name = entry.path().filename();
    if (is_result_file(name.string()) && entry.is_regular_file() && !fs::exists(result / name)) {
      others.push_back(entry.path());
    }
  }
  for (const char* name : {kDefaultTemplateFile, kToolTemplateFile}) {
    if (!fs::exists(result / name)) others.push_back(from / name);
  }
  for (const fs::path& path : others) fs::remove(path);
}

// Moves the files of a finished directory into place, the weights last: whoever sees them sees a
// model.
void move_files(const fs::path& from, const fs::path& to) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(from)) {
    if (entry.is_regular_file()) paths.push_back(fs::relative(entry.path(), from));
  }
  std::sort(paths.begin(), paths.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(a.extension() == ".safetensors", a) <
           std::pair(b.extension() == ".safetensors", b);
  });
  std::error_code error;
  for (const fs::path& path : paths) {
    fs::create_directories((to / path).parent_path(), error);
    fs::rename(from / path, to / path, error);
    if (error) {
      throw Error(
          ErrorKind::generic,
          fmt::format("cannot move {} to {}: {}", path.string(), to.string(), error.message()),
          fmt::format("the result is whole in {}", from.string()));
    }
  }
  sync_directory(to);
  fs::remove_all(from, error);
}

}  // namespace

void export_result(ResultSource& source, const ModelFiles& files, const Tokenizer& tokenizer,
                   const ChatFormat& format, const fs::path& output_dir) {
  const fs::path beside = result_staging(output_dir);
  if (const nlohmann::json adapter = source.adapter(); !adapter.is_null()) {
    export_adapter([&](const StateVisitor& visitor) { source.visit(visitor); }, source.ops(),
                   adapter, files.origin, beside);
  } else {
    AtomicDirectory directory(beside);
    export_model(source, files, tokenizer, format, directory.path());
    directory.commit();
  }
  write_texts(tokenizer_texts(files, tokenizer, format), beside);
  remove_others(beside, output_dir);
  move_files(beside, output_dir);
}

int64_t result_bytes(ResultSource& source, const ModelFiles& files, const Tokenizer& tokenizer,
                     const ChatFormat& format) {
  const int64_t texts = bytes_of(tokenizer_texts(files, tokenizer, format));
  if (const nlohmann::json adapter = source.adapter(); !adapter.is_null()) {
    const StateSource states = [&](const StateVisitor& visitor) { source.visit(visitor); };
    return checked_add(texts, adapter_bytes(states, adapter, files.origin));
  }
  const std::vector<SafetensorsSpec> specs = source.weights();
  const int64_t configs = bytes_of(config_texts(files, tokenizer, format, specs));
  return checked_add(checked_add(texts, configs), ShardedSafetensorsWriter::bytes(specs));
}

}  // namespace jackscrew
