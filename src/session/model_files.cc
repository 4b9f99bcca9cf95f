#include "session/model_files.h"

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "base/checked.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/list_text.h"
#include "base/shell_word.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "formats/gguf_llama.h"
#include "formats/gguf_names.h"
#include "formats/hf_config.h"
#include "formats/peft.h"
#include "formats/safetensors.h"
#include "model/weights.h"
#include "quant/stored_rows.h"
#include "report/progress.h"
#include "text/tokenizer/byte_map.h"

namespace jackscrew {

namespace {

// The value of `tokenizer` for byte_tokenizer().
constexpr const char* kBytes = "bytes";

// The model shapes of the literature on training small Llamas (GaLore, table of configurations),
// and larger ones as published.
struct ModelShape {
  const char* name;
  int64_t hidden, intermediate, heads, layers, vocab, context;
  int64_t kv_heads = heads;
  const char* architecture = "LlamaForCausalLM";
  bool tied = false;
  int64_t head_dim = hidden / heads;
};
constexpr const char* kQwen2 = "Qwen2ForCausalLM";
constexpr const char* kQwen3 = "Qwen3ForCausalLM";
constexpr const char* kSmolLM3 = "SmolLM3ForCausalLM";
constexpr ModelShape kShapes[] = {
    {"llama-9m", 128, 352, 4, 4, 32000, 1024},
    {"llama-20m", 256, 688, 4, 4, 32000, 1024},
    {"llama-35m", 384, 1024, 8, 6, 32000, 1024},
    {"llama-40m", 416, 1024, 8, 8, 32000, 1024},
    {"llama-60m", 512, 1376, 8, 8, 32000, 1024},
    {"llama-71m", 512, 1368, 8, 12, 32000, 1024},
    {"llama-100m", 640, 1708, 10, 12, 32000, 1024},
    {"llama-130m", 768, 2048, 12, 12, 32000, 1024},
    {"llama-250m", 768, 2560, 16, 24, 32000, 1024},
    {"llama-350m", 1024, 2736, 16, 24, 32000, 1024},
    {"llama-1b", 2048, 5461, 32, 24, 32000, 1024},
    {"llama-3b", 2560, 6848, 32, 32, 32000, 1024},
    {"llama-7b", 4096, 11008, 32, 32, 32000, 2048},
    {"llama-13b", 5120, 13824, 40, 40, 32000, 4096},
    {"llama-70b", 8192, 28672, 64, 80, 32000, 4096, 8},
    {"llama3-8b", 4096, 14336, 32, 32, 128256, 8192, 8},
    {"smollm2-135m", 576, 1536, 9, 30, 49152, 8192, 3, "LlamaForCausalLM", true},
    {"mistral-7b", 4096, 14336, 32, 32, 32768, 32768, 8, "MistralForCausalLM"},
    {"qwen2.5-0.5b", 896, 4864, 14, 24, 151936, 32768, 2, kQwen2, true},
    {"qwen2.5-1.5b", 1536, 8960, 12, 28, 151936, 32768, 2, kQwen2, true},
    {"qwen2.5-3b", 2048, 11008, 16, 36, 151936, 32768, 2, kQwen2, true},
    {"qwen2.5-7b", 3584, 18944, 28, 28, 152064, 32768, 4, kQwen2},
    {"qwen3-0.6b", 1024, 3072, 16, 28, 151936, 40960, 8, kQwen3, true, 128},
    {"qwen3-1.7b", 2048, 6144, 16, 28, 151936, 40960, 8, kQwen3, true, 128},
    {"qwen3-4b", 2560, 9728, 32, 36, 151936, 40960, 8, kQwen3, true, 128},
    {"qwen3-8b", 4096, 12288, 32, 36, 151936, 40960, 8, kQwen3, false, 128},
    {"smollm3-3b", 2048, 11008, 16, 36, 128256, 65536, 4, kSmolLM3, true},
};

ModelConfig shape_config(const ModelShape& shape) {
  ModelConfig config;
  config.architecture = find_architecture(shape.architecture);
  config.vocab_size = shape.vocab;
  config.hidden_size = shape.hidden;
  config.intermediate_size = shape.intermediate;
  config.num_hidden_layers = shape.layers;
  config.num_attention_heads = shape.heads;
  config.num_key_value_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.tie_word_embeddings = shape.tied;
  config.max_position_embeddings = shape.context;
  config.validate();
  if (config.architecture->nope) {
    config.unrotated = unrotated_every(kUnrotatedInterval, shape.layers);
  }
  return config;
}

// Keeps the tokenizer that `read` returns, or the error that it throws.
template <class Read>
void take_tokenizer(ModelFiles& files, const std::string& origin, const Read& read) {
  files.tokenizer_origin = origin;
  files.tokenizer_texts.clear();
  files.tokenizer.reset();
  files.tokenizer_error.reset();
  try {
    if (std::optional<TokenizerData> data = read()) {
      files.tokenizer = std::make_shared<const TokenizerData>(*std::move(data));
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::model) throw;
    files.tokenizer_error = error;
  }
}

void take_tokenizer_of(ModelFiles& files, const fs::path& directory) {
  take_tokenizer(files, directory.string(), [&] {
    files.tokenizer_texts = read_tokenizer_texts(directory);
    return parse_tokenizer_texts(files.tokenizer_texts, directory);
  });
}

// Giving an adapter's directory as the model is an easy mistake: a run writes such directories.
void refuse_adapter(const fs::path& directory) {
  if (!is_there(directory / kAdapterConfig, ErrorKind::model)) return;
  const std::string base = peft_base_model(directory);
  std::error_code unreachable;
  // As it was named where the adapter was trained.
  const bool is_elsewhere =
      !base.empty() && fs::path(base).is_relative() && !fs::exists(base, unreachable);
  throw Error(
      ErrorKind::model, fmt::format("{} is an adapter, not a model", directory.string()),
      fmt::format("give the model that it belongs to as well{}: model={} adapter={}",
                  is_elsewhere ? "; its path is as it was where the adapter was trained" : "",
                  base.empty() ? "MODEL" : shell_word(base),
                  shell_word(list_item(directory.string()))));
}

// Whether a directory has weights beside those of an adapter.
bool has_model_weights(const fs::path& directory) {
  return std::ranges::any_of(entries_of(directory), [](const fs::directory_entry& entry) {
    return entry.path().extension() == ".safetensors" &&
           entry.path().filename() != kPeftWeightsFile;
  });
}

[[noreturn]] void refuse_missing(const std::string& model) {
  if (is_repository_name(model)) {
    const std::string name = model.substr(model.find('/') + 1);
    throw Error(
        ErrorKind::model, fmt::format("model {} does not exist here", model),
        fmt::format("the program downloads nothing: `hf download {} --local-dir {}` gets it "
                    "from the hub, then model={}",
                    model, name, name));
  }
  std::vector<std::string> names;
  for (const ModelShape& shape : kShapes) names.emplace_back(shape.name);
  const auto nearest = nearest_name(model, names);
  throw Error(ErrorKind::model, fmt::format("model {} does not exist", model),
              nearest ? fmt::format("did you mean the shape {}?", *nearest)
                      : "give a Hugging Face directory, a GGUF file, a config.json or a shape "
                        "such as llama-60m" +
                            from_where(model));
}

[[noreturn]] void refuse_without_config(const fs::path& directory) {
  refuse_adapter(directory);
  std::string hint = "give a directory that Hugging Face's save_pretrained() or a run wrote";
  if (const std::string of_run = hint_without_result(directory); !of_run.empty()) {
    hint = of_run;
  } else if (has_tokenizer(directory)) {
    hint += fmt::format("; its tokenizer alone is read by tokenizer={}",
                        shell_word(directory.string()));
  }
  throw Error(ErrorKind::model, fmt::format("{} has no config.json", directory.string()), hint);
}

void read_config(ModelFiles& files, const fs::path& path) {
  files.config = parse_hf_config(read_text(path), path.string());
}

enum class Weights { open, leave };

void open_directory(ModelFiles& files, const fs::path& path, Weights weights) {
  const fs::path config = path / "config.json";
  if (!is_there(config, ErrorKind::model)) {
    if (weights == Weights::open || !has_tokenizer(path)) refuse_without_config(path);
  } else {
    read_config(files, config);
    if (weights == Weights::open) {
      if (!has_model_weights(path)) refuse_adapter(path);
      auto source = std::make_unique<SafetensorsSource>(path);
      if (source->has_own_head()) files.config.tie_word_embeddings = false;
      if (files.config.tie_word_embeddings) source->take_head_as_embedding();
      files.source = std::move(source);
    }
    if (const fs::path generation = path / kGenerationConfig;
        is_there(generation, ErrorKind::model)) {
      files.generation_config = read_text(generation);
      files.end_tokens = parse_end_tokens(*files.generation_config);
    }
  }
  take_tokenizer_of(files, path);
}

void open_gguf(ModelFiles& files, const fs::path& path) {
  auto source = std::make_unique<GgufSource>(path);
  files.config = source->config();
  const GgufTokenizerMetadata metadata = gguf_tokenizer(source->file());
  if (!metadata.model.empty()) {
    take_tokenizer(files, files.origin,
                   [&] { return gguf_tokenizer_data(metadata, files.origin); });
  }
  files.source = std::move(source);
}

// The model with its own tokenizer.
ModelFiles open_model_alone(const std::string& model, Weights weights) {
  ModelFiles files;
  files.origin = model;
  const fs::path path(model);
  if (const auto shape = std::ranges::find(kShapes, model, &ModelShape::name);
      shape != std::end(kShapes)) {
    files.config = shape_config(*shape);
  } else if (!is_there(path, ErrorKind::model)) {
    refuse_missing(model);
  } else if (fs::is_directory(path)) {
    open_directory(files, path, weights);
  } else if (path.extension() == ".json") {
    read_config(files, path);
    take_tokenizer_of(files, path.has_parent_path() ? path.parent_path() : fs::path("."));
  } else {
    open_gguf(files, path);
  }
  return files;
}

// The model's chat template may count beside the adapter's tokenizer: without it the run would be
// another one.
void refuse_unread_tokenizer(const ModelFiles& files, const std::string& adapter) {
  if (!files.has_unread_tokenizer()) return;
  const Error& error = *files.tokenizer_error;
  throw Error(error.kind(), error.what(),
              fmt::format("{}or take the adapter's tokenizer alone: tokenizer={}",
                          error.hint().empty() ? "make it readable, " : error.hint() + ", ",
                          shell_word(adapter)));
}

// A tokenizer named in the recipe takes precedence, then the adapter's, then the model's.
void choose_tokenizer(ModelFiles& files, const std::string& adapter, const std::string& tokenizer) {
  if (is_tokenizer_path(tokenizer)) {
    FoundTokenizer found = read_tokenizer(tokenizer);
    files.tokenizer_origin = found.origin.string();
    files.tokenizer_texts = std::move(found.texts);
    files.tokenizer = std::make_shared<const TokenizerData>(std::move(found.data));
    files.tokenizer_error.reset();
    files.tokenizer_owner = TokenizerOwner::recipe;
  } else if (!adapter.empty() && has_tokenizer(adapter)) {
    if (tokenizer != kBytes) refuse_unread_tokenizer(files, adapter);
    const std::shared_ptr<const TokenizerData> own = std::move(files.tokenizer);
    take_tokenizer_of(files, adapter);
    // Trainers write the model's tokenizer beside an adapter: then its configuration still counts.
    const bool same = own && files.tokenizer && same_tokens(*own, *files.tokenizer);
    files.tokenizer_owner = same ? TokenizerOwner::model : TokenizerOwner::adapter;
    files.lends_templates = same && files.tokenizer->chat_template.empty() &&
                            files.tokenizer->tool_template.empty() && !own->chat_template.empty();
    if (files.lends_templates) {
      TokenizerData with_templates = *files.tokenizer;
      with_templates.chat_template = own->chat_template;
      with_templates.tool_template = own->tool_template;
      files.tokenizer = std::make_shared<const TokenizerData>(std::move(with_templates));
    }
  }
}

// For the words of an error, which one of its own must not replace.
bool looks_like_gguf(const fs::path& origin) {
  try {
    return is_gguf_file(origin);
  } catch (const Error&) {
    return false;
  }
}

// A weight by the name that the model's file has for it, for messages.
WeightSpec as_named_in(const ModelFiles& files, WeightSpec weight) {
  if (looks_like_gguf(files.origin)) weight.name = gguf_name(weight);
  return weight;
}

// What to do about a tensor; `state` is what its file may be.
std::string tensor_hint(const ModelFiles& files, const char* state) {
  return fmt::format("the file is {}, or {} to another model", state,
                     looks_like_gguf(files.origin) ? "its metadata belong" : "config.json belongs");
}

// What to do about a weight that a source lacks.
std::string missing_hint(const ModelFiles& files, const WeightSource& source,
                         const std::string& name) {
  constexpr std::string_view kPrefix = "model.";
  const std::vector<std::string> names = source.names();
  if (name.starts_with(kPrefix) && std::ranges::count(names, name.substr(kPrefix.size())) > 0) {
    return "AutoModel's save_pretrained() leaves `model.` out of all names, and the head: save the "
           "model by AutoModelForCausalLM";
  }
  return tensor_hint(files, "incomplete");
}

Tokenizer tokenizer_of(std::shared_ptr<const TokenizerData> data, const std::string& origin) {
  try {
    return Tokenizer(std::move(data));
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", origin, error.what()),
                looks_like_gguf(origin) ? kGiveOwnTokenizer : error.hint());
  }
}

}  // namespace

bool ModelFiles::has_tokens_of(const Tokenizer& other) const {
  return tokenizer && same_tokens(*tokenizer, other.data());
}

bool ModelFiles::has_own_tokens(const Tokenizer& other) const {
  return tokenizer_owner == TokenizerOwner::model && has_tokens_of(other);
}

bool ModelFiles::has_unread_tokenizer() const {
  return tokenizer_error && tokenizer_texts.empty() && fs::is_directory(tokenizer_origin);
}

bool is_tokenizer_path(const std::string& tokenizer) {
  return tokenizer != "auto" && tokenizer != kBytes;
}

ModelFiles open_model(const std::string& model, const std::string& adapter,
                      const std::string& tokenizer) {
  ModelFiles files = open_model_alone(model, Weights::open);
  choose_tokenizer(files, adapter, tokenizer);
  return files;
}

ModelFiles open_tokenizer(const std::string& model, const std::string& adapter,
                          const std::string& tokenizer) {
  ModelFiles files = model.empty() ? ModelFiles{} : open_model_alone(model, Weights::leave);
  choose_tokenizer(files, adapter, tokenizer);
  return files;
}

TokenizerData byte_tokenizer() {
  TokenizerData data;
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(mapped_character(static_cast<uint8_t>(byte)));
    data.kinds.push_back(TokenKind::normal);
  }
  for (const char* special : {"<s>", "</s>"}) {
    data.tokens.emplace_back(special);
    data.kinds.push_back(TokenKind::special);
  }
  data.pre_tokenizer = {PreTokenizerStep{}};
  data.bos = 256;
  data.eos = 257;
  data.add_bos = true;
  return data;
}

const StoredTensor& stored_tensor(const ModelFiles& files, const WeightSource& source,
                                  const WeightSpec& weight) {
  const StoredTensor* stored = source.find(weight.name);
  if (stored != nullptr) return *stored;
  throw Error(
      ErrorKind::model,
      fmt::format("{}: tensor {} is missing", files.origin, as_named_in(files, weight).name),
      missing_hint(files, source, weight.name));
}

const StoredTensor& checked_tensor(const ModelFiles& files, const WeightSource& source,
                                   const WeightSpec& weight) {
  return checked_tensor(files, source, weight, {});
}

const StoredTensor& checked_tensor(const ModelFiles& files, const WeightSource& source,
                                   const WeightSpec& weight,
                                   const std::function<void(const StoredTensor&)>& use) {
  const StoredTensor& stored = stored_tensor(files, source, weight);
  try {
    check_stored(as_named_in(files, weight), stored);
    if (use) use(stored);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::model) throw;
    throw Error(ErrorKind::model, fmt::format("{}: {}", files.origin, error.what()),
                tensor_hint(files, "damaged"));
  }
  return stored;
}

int64_t stored_bytes(const ModelFiles& files) {
  if (files.source == nullptr) return 0;
  int64_t bytes = 0;
  for (const WeightSpec& weight : weights_of(files.config, StageSpec::whole(files.config))) {
    const StoredTensor* const stored = files.source->find(weight.name);
    if (stored != nullptr) bytes = checked_add(bytes, stored->size_bytes());
  }
  return bytes;
}

namespace {

// What other programs keep beside weights for activations and caches that they round.
bool is_scale_of_activations(std::string_view name) {
  constexpr std::string_view kScales[] = {".input_scale", ".output_scale", ".q_scale", ".k_scale",
                                          ".v_scale"};
  return std::ranges::any_of(kScales,
                             [&](std::string_view scale) { return name.ends_with(scale); });
}

bool is_zero(const WeightSource& source, const std::string& name) {
  try {
    const StoredTensor* stored = source.find(name);
    return stored != nullptr && std::all_of(stored->bytes.begin(), stored->bytes.end(),
                                            [](uint8_t byte) { return byte == 0; });
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::model) throw;
    return false;  // of a type that is not read, which is no reason to refuse what nobody needs
  }
}

}  // namespace

void warn_of_unused_tensors(const ModelFiles& files) {
  if (files.source == nullptr) return;
  std::unordered_set<std::string> wanted;
  if (files.config.tie_word_embeddings) wanted.insert("lm_head.weight");
  for (const WeightSpec& weight : weights_of(files.config, StageSpec::whole(files.config))) {
    wanted.insert(weight.name);
  }
  int64_t unused = 0;
  std::string first;
  for (const std::string& name : files.source->names()) {
    if (wanted.contains(name) || name.ends_with(".rotary_emb.inv_freq")) continue;
    if (is_scale_of_activations(name)) continue;
    if (name.ends_with(".bias") && is_zero(*files.source, name)) continue;
    if (unused++ == 0) first = name;
  }
  if (unused == 0) return;
  warn(fmt::format(
      "{}: {} {} not used, since the model of its configuration has no place for {}: {}{}",
      files.origin, counted(unused, "tensor"), unused == 1 ? "is" : "are",
      unused == 1 ? "it" : "them", first, unused == 1 ? "" : " ..."));
}

Tokenizer make_tokenizer(const std::string& choice, const ModelFiles& files) {
  std::shared_ptr<const TokenizerData> data;
  if (choice == kBytes) {
    data = std::make_shared<const TokenizerData>(byte_tokenizer());
  } else if (files.tokenizer) {
    data = files.tokenizer;
  } else if (files.tokenizer_error) {
    throw Error(*files.tokenizer_error);
  } else {
    throw Error(
        ErrorKind::model, fmt::format("{} has no tokenizer", files.origin),
        "put its tokenizer.json beside the weights, or give tokenizer=DIR of another model, or "
        "tokenizer=bytes");
  }
  Tokenizer tokenizer = tokenizer_of(std::move(data), files.tokenizer_origin);
  const bool is_known = files.config.vocab_size > 0;
  if (is_known && tokenizer.vocab_size() > files.config.vocab_size) {
    throw Error(
        ErrorKind::model,
        fmt::format("{}: the tokenizer has {} tokens, the model only {}",
                    choice == kBytes ? files.origin : files.tokenizer_origin,
                    tokenizer.vocab_size(), files.config.vocab_size),
        choice == kBytes ? "tokenizer=bytes needs a vocab_size of at least 258"
        : files.tokenizer_owner == TokenizerOwner::recipe
            ? fmt::format("from scratch, model= may be a config.json with a vocab_size of {} "
                          "or more",
                          tokenizer.vocab_size())
            : "the tokenizer belongs to another model, or tokens were added to the tokenizer but "
              "not to the model");
  }
  return tokenizer;
}

}  // namespace jackscrew
