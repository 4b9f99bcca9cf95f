// jackscrew inspect: shows what is in a model directory, a GGUF file, a shape or an adapter
// directory.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/directory.h"
#include "base/error.h"
#include "base/shared_names.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "formats/peft.h"
#include "formats/shape.h"
#include "session/model_files.h"
#include "text/chat/chat_format.h"

namespace jackscrew {

namespace {

using nlohmann::ordered_json;

struct TensorLine {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

std::vector<TensorLine> tensor_lines(const WeightSource& source) {
  std::vector<TensorLine> lines;
  for (const std::string& name : source.names()) {
    try {
      const StoredTensor& tensor = *source.find(name);
      lines.push_back({name, tensor.format->name(), tensor.shape, tensor.size_bytes()});
    } catch (const Error&) {
      // The format cannot be used for computing, but the model can still be inspected.
      lines.push_back({name, "unsupported", {}, 0});
    }
  }
  return lines;
}

ordered_json tensors_json(const std::vector<TensorLine>& lines) {
  ordered_json tensors = ordered_json::array();
  for (const TensorLine& line : lines) {
    tensors.push_back(
        {{"name", line.name}, {"shape", line.shape}, {"dtype", line.dtype}, {"bytes", line.bytes}});
  }
  return tensors;
}

// {format: {"tensors", "elements", "bytes"}}
ordered_json storage_json(const std::vector<TensorLine>& lines) {
  ordered_json storage = ordered_json::object();
  for (const TensorLine& line : lines) {
    ordered_json& entry = storage[line.dtype];
    if (entry.is_null()) entry = {{"tensors", 0}, {"elements", 0}, {"bytes", 0}};
    const auto add = [&](const char* key, int64_t value) {
      entry[key] = entry[key].get<int64_t>() + value;
    };
    add("tensors", 1);
    add("elements", line.shape.empty() ? 0 : shape_elements(line.shape).value_or(0));
    add("bytes", line.bytes);
  }
  return storage;
}

ordered_json id_or_null(int64_t id) {
  return id < 0 ? ordered_json() : ordered_json(id);
}

ordered_json tokenizer_json(const TokenizerData& data) {
  const ChatFormat format = chat_format("auto", data, {});
  const std::optional<Error>& refusal = format.general.refusal;
  const std::string chat = refusal ? refusal->what() : format.is_plain() ? "plain" : "template";
  const bool byte_level = data.spelling == Spelling::byte_map;
  return {{"kind", byte_level ? "byte-level BPE" : "SentencePiece BPE"},
          {"vocab_size", data.tokens.size()},
          {"merges", data.merges.size()},
          {"bos_token_id", id_or_null(data.bos)},
          {"eos_token_id", id_or_null(data.eos)},
          {"pad_token_id", id_or_null(data.pad)},
          {"add_bos", data.add_bos},
          {"chat_format", chat}};
}

// Null where there is no tokenizer.
ordered_json tokenizer_json(const ModelFiles& files) {
  if (files.tokenizer) return tokenizer_json(*files.tokenizer);
  if (files.tokenizer_error) return {{"error", files.tokenizer_error->what()}};
  return {};
}

ordered_json rope_json(const ModelConfig& config) {
  ordered_json rope = {{"theta", config.rope_theta},
                       {"scaling", rope_type_name(config.rope_scaling.kind)}};
  if (config.rope_scaling.kind != RopeScaling::Kind::none) {
    rope["factor"] = config.rope_scaling.factor;
  }
  return rope;
}

ordered_json model_json(const ModelFiles& files, const std::vector<TensorLine>& lines) {
  const ModelConfig& config = files.config;
  ordered_json json = {{"path", files.origin},
                       {"architecture", config.architecture->name},
                       {"parameters", config.parameter_count()},
                       {"num_hidden_layers", config.num_hidden_layers},
                       {"hidden_size", config.hidden_size},
                       {"intermediate_size", config.intermediate_size},
                       {"num_attention_heads", config.num_attention_heads},
                       {"num_key_value_heads", config.num_key_value_heads},
                       {"head_dim", config.head_dim},
                       {"vocab_size", config.vocab_size},
                       {"max_position_embeddings", config.max_position_embeddings},
                       {"tie_word_embeddings", config.tie_word_embeddings},
                       {"rms_norm_eps", config.rms_norm_eps},
                       {"rope", rope_json(config)},
                       {"sliding_window", config.sliding_window},
                       {"eos_token_ids", config.eos_token_ids}};
  json["tokenizer"] = tokenizer_json(files);
  if (const std::string type = files.source ? files.source->file_type() : ""; !type.empty()) {
    json["file_type"] = type;
  }
  json["storage"] = storage_json(lines);
  json["tensors"] = tensors_json(lines);
  return json;
}

ordered_json adapter_json(const std::string& path, const PeftAdapter& adapter) {
  std::vector<TensorLine> lines;
  int64_t parameters = 0;
  for (const PeftTensor& tensor : adapter.tensors) {
    lines.push_back(
        {tensor.name, dtype_name(tensor.dtype), tensor.shape, std::ssize(tensor.bytes)});
    parameters += tensor.size();
  }
  ordered_json json = {{"path", path}, {"adapter", adapter.peft_type}, {"parameters", parameters}};
  json.update(adapter.settings);
  if (!adapter.base_storage.empty()) json[kBaseStorage] = adapter.base_storage;
  json["base_model"] = adapter.base_model_name_or_path;
  json["storage"] = storage_json(lines);
  json["tensors"] = tensors_json(lines);
  return json;
}

// A value without JSON's quotes and braces.
std::string shown(const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "none";
  if (!value.is_structured()) return value.dump();
  std::string out;
  for (const auto& [key, item] : value.items()) {
    out += out.empty() ? "" : ", ";
    out += value.is_object() ? fmt::format("{} {}", key, shown(item)) : shown(item);
  }
  return out.empty() ? "none" : out;
}

void print_text(const ordered_json& json, bool verbose) {
  for (const auto& [key, value] : json.items()) {
    if (key == "storage" || key == "tensors") continue;
    fmt::print("{:<26}{}\n", key, one_line(shown(value)));
  }
  if (json["storage"].empty()) {
    fmt::print("{:<26}none: a shape without weights\n", "storage");
    return;
  }
  fmt::print("\n{:<14}{:>8}{:>16}{:>14}\n", "storage", "tensors", "elements", "bytes");
  for (const auto& [format, entry] : json["storage"].items()) {
    fmt::print("{:<14}{:>8}{:>16}{:>14}\n", format, entry["tensors"].get<int64_t>(),
               entry["elements"].get<int64_t>(), human_bytes(entry["bytes"].get<int64_t>()));
  }
  if (!verbose) return;
  fmt::print("\n");
  for (const ordered_json& tensor : json["tensors"]) {
    fmt::print("{:<54} {:<12} {}\n", one_line(tensor["name"].get<std::string>()),
               tensor["dtype"].get<std::string>(),
               shape_text(tensor["shape"].get<std::vector<int64_t>>()));
  }
}

int inspect(const Recipe& recipe) {
  const std::string path = recipe.operands.empty() ? recipe.model : recipe.operands[0];
  if (path.empty()) {
    throw Error(ErrorKind::usage, "inspect needs a path",
                "give a model directory, a GGUF file, a config.json, a shape or an adapter");
  }
  if (!recipe.operands.empty()) warn_of_unused(recipe, "inspect", {"model"}, " beside a path");
  ordered_json json;
  if (is_there(fs::path(path) / kAdapterConfig, ErrorKind::model)) {
    json = adapter_json(path, read_peft_adapter(path));
  } else {
    const ModelFiles files = open_model(path);
    json = model_json(
        files, files.source == nullptr ? std::vector<TensorLine>() : tensor_lines(*files.source));
  }
  if (recipe.json) {
    fmt::print("{}\n", json.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  } else {
    print_text(json, recipe.verbose);
  }
  return 0;
}

}  // namespace

int run_inspect(Arguments arguments) {
  return with_recipe(arguments, 1, "inspect", inspect);
}

}  // namespace jackscrew
