#include "formats/peft.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/checked.h"
#include "base/directory.h"
#include "base/error.h"
#include "base/half.h"
#include "base/list_text.h"
#include "base/map_guard.h"
#include "base/shared_names.h"
#include "base/shell_word.h"
#include "formats/checkpoint.h"
#include "formats/peft_lora.h"
#include "formats/peft_prompt.h"

namespace jackscrew {

namespace {

using nlohmann::json;

constexpr const char* kAdapterDirectory =
    "give the directory that PEFT's save_pretrained() or a run wrote";

// Null for an unknown type.
const PeftType* find_type(std::string_view name) {
  static const std::array<const PeftType*, 2> kTypes = {&kPeftLora, &kPeftPrompt};
  const auto found = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const PeftType* type) { return name == type->name; });
  return found == kTypes.end() ? nullptr : *found;
}

const PeftType& type_of(const JsonFields& fields) {
  const std::string name = fields.text("peft_type");
  if (const PeftType* type = find_type(name)) return *type;
  throw Error(ErrorKind::model,
              fmt::format("{}: peft_type {} is not supported", fields.where(), name),
              "supported: LORA and PROMPT_TUNING");
}

// `config` as Learner::adapter() returns it.
std::string_view prefix_of(const json& config) {
  const PeftType* type = find_type(config.value("peft_type", ""));
  return type == nullptr ? kAdapterPrefix : type->prefix;
}

// The bytes may have any alignment.
template <typename T>
std::vector<float> widened(std::span<const uint8_t> bytes) {
  std::vector<float> out(bytes.size() / sizeof(T));
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = to_float(value);
  }
  return out;
}

[[noreturn]] void refuse_tensor(const std::string& where, const std::string& what) {
  throw Error(ErrorKind::model, fmt::format("{}: {} is not supported", where, what),
              "supported: adapters as PEFT's save_pretrained() writes them, in F32, BF16 or F16");
}

PeftTensor open_tensor(const SafetensorsEntry& entry, std::string_view prefix,
                       const std::string& where) {
  if (!entry.name.starts_with(prefix)) refuse_tensor(where, "tensor " + entry.name);
  if (format_of_dtype(entry.dtype) == nullptr) {
    refuse_tensor(where, fmt::format("dtype {} of tensor {}", entry.dtype, entry.name));
  }
  return {entry.name.substr(prefix.size()), entry.shape, *dtype_named(entry.dtype), entry.bytes};
}

std::string config_text(json config, const std::string& base_model) {
  config.erase(kBaseStorage);
  config["task_type"] = "CAUSAL_LM";
  config["base_model_name_or_path"] = base_model.empty() ? json() : json(base_model);
  config["inference_mode"] = true;
  config["auto_mapping"] = nullptr;
  config["revision"] = nullptr;
  return dump_json(config) + "\n";
}

SafetensorsMetadata metadata_of(const json& config) {
  if (!config.contains(kBaseStorage)) return {};
  return {{kBaseStorage, config[kBaseStorage].get<std::string>()}};
}

// Empty where the file has none. Throws Error(model) for one that nothing can be rounded to.
std::string base_storage_of(const SafetensorsFile& file) {
  const auto found = file.metadata().find(kBaseStorage);
  if (found == file.metadata().end()) return {};
  const Format* format = format_named(found->second);
  if (format == nullptr || !format->can_encode()) {
    fail(ErrorKind::model, "{}: {} is {}, which weights cannot be rounded to", file.path().string(),
         kBaseStorage, found->second);
  }
  return found->second;
}

// The names of the adapters in a directory, each of which is a directory of its own.
std::vector<std::string> adapters_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : entries_of(directory)) {
    if (is_there(entry.path() / kAdapterConfig)) names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

[[noreturn]] void refuse_file(const fs::path& file) {
  const fs::path parent = file.has_parent_path() ? file.parent_path() : ".";
  throw Error(ErrorKind::model,
              fmt::format("adapter {} is a file, where a directory is needed", file.string()),
              file.filename() == kPeftWeightsFile
                  ? fmt::format("give the directory that it is in: adapter={}",
                                shell_word(list_item(parent.string())))
              : file.extension() == ".gguf"
                  ? "llama.cpp takes adapters in such files with --lora; give adapter= the "
                    "directory that it was made from"
                  : kAdapterDirectory);
}

[[noreturn]] void refuse_without_config(const fs::path& directory) {
  std::string hint = kAdapterDirectory;
  if (has_result_to_move(directory)) {  // which adapters_in() would find
    hint = hint_without_result(directory);
  } else if (is_there(directory / "config.json")) {
    hint = fmt::format("it is a whole model: give it as model={}, without adapter",
                       shell_word(directory.string()));
  } else if (const auto names = adapters_in(directory); !names.empty()) {
    hint = fmt::format("there are adapters in it, of which one is to be given: {}",
                       fmt::join(names, ", "));
  } else if (const std::string of_run = hint_without_result(directory); !of_run.empty()) {
    hint = of_run;
  }
  throw Error(ErrorKind::model, fmt::format("{} has no {}", directory.string(), kAdapterConfig),
              hint);
}

std::vector<SafetensorsSpec> specs_of(const json& config, const std::vector<NamedShape>& tensors) {
  const std::string prefix(prefix_of(config));
  std::vector<SafetensorsSpec> specs;
  specs.reserve(tensors.size());
  for (const NamedShape& tensor : tensors) {
    specs.push_back({prefix + tensor.name, "F32", tensor.shape});
  }
  return specs;
}

}  // namespace

int64_t PeftTensor::size() const {
  return std::ssize(bytes) / dtype_size(dtype);
}

std::vector<float> PeftTensor::values(int64_t begin, int64_t end) const {
  const auto size_of_one = static_cast<size_t>(dtype_size(dtype));
  const std::span<const uint8_t> part = bytes.subspan(
      static_cast<size_t>(begin) * size_of_one, static_cast<size_t>(end - begin) * size_of_one);
  std::vector<float> out = dtype == DType::bf16  ? widened<bf16>(part)
                           : dtype == DType::f16 ? widened<f16>(part)
                                                 : widened<float>(part);
  check_map(bytes.data());
  return out;
}

void PeftTensor::for_parts(
    const std::function<void(int64_t begin, std::span<const float>)>& use) const {
  constexpr int64_t kPart = int64_t{1} << 18;  // values: as few as cost no time
  for (int64_t begin = 0; begin < size(); begin += kPart) {
    use(begin, values(begin, std::min(size(), begin + kPart)));
  }
}

std::string peft_base_model(const fs::path& directory) {
  try {
    const json root = parse_json(read_text(directory / kAdapterConfig), kAdapterConfig);
    return JsonFields(root, kAdapterConfig).text("base_model_name_or_path", "");
  } catch (const Error&) {
    return {};
  }
}

PeftAdapter read_peft_adapter(const fs::path& directory) {
  const fs::path config = directory / kAdapterConfig;
  const fs::path weights = directory / kPeftWeightsFile;
  if (!is_there(directory, ErrorKind::model)) {
    throw Error(ErrorKind::model, fmt::format("adapter {} does not exist", directory.string()),
                "check the path" + from_where(directory));
  }
  if (!fs::is_directory(directory)) refuse_file(directory);
  if (!is_there(config, ErrorKind::model)) refuse_without_config(directory);
  if (!is_there(weights, ErrorKind::model)) {
    throw Error(ErrorKind::model, fmt::format("{} has no {}", directory.string(), kPeftWeightsFile),
                "save the adapter again with safe_serialization=True");
  }
  const std::string text = read_text(config);
  const json root = parse_json(text, config.string());
  const JsonFields fields(root, config.string());
  const PeftType& type = type_of(fields);
  PeftAdapter adapter;
  adapter.peft_type = type.name;
  adapter.learner = type.learner;
  adapter.base_model_name_or_path = fields.text("base_model_name_or_path", "");
  type.read_settings(fields, nlohmann::ordered_json::parse(text), adapter);
  adapter.file = std::make_shared<SafetensorsFile>(weights);
  adapter.base_storage = base_storage_of(*adapter.file);
  const std::string where = weights.string();
  for (const SafetensorsEntry& entry : adapter.file->entries()) {
    adapter.tensors.push_back(open_tensor(entry, type.prefix, where));
  }
  if (adapter.tensors.empty()) fail(ErrorKind::model, "{}: no tensors", where);
  std::ranges::sort(adapter.tensors, {}, &PeftTensor::name);
  type.read_tensors(where, adapter);
  return adapter;
}

std::vector<std::string> stored_names(const json& config, const std::string& name) {
  if (name != "model.embed_tokens.weight" || !config.value("ensure_weight_tying", false)) {
    return {name};
  }
  return {name, "lm_head.weight"};
}

int64_t peft_bytes(const json& config, const std::string& base_model,
                   const std::vector<NamedShape>& tensors) {
  return checked_add(std::ssize(config_text(config, base_model)),
                     safetensors_bytes(specs_of(config, tensors), metadata_of(config)));
}

PeftWriter::PeftWriter(const fs::path& directory, const json& config, const std::string& base_model,
                       const std::vector<NamedShape>& tensors)
    : directory_(directory), prefix_(prefix_of(config)) {
  FileWriter text(path() / kAdapterConfig);
  text.write(config_text(config, base_model));
  text.close();
  writer_ = std::make_unique<SafetensorsWriter>(
      path() / kPeftWeightsFile, specs_of(config, tensors), nullptr, metadata_of(config));
}

void PeftWriter::write(std::string_view name, std::span<const float> values) {
  writer_->write(prefix_ + std::string(name),
                 {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()});
}

void PeftWriter::commit() {
  writer_->close();
  directory_.commit();
}

}  // namespace jackscrew
