#include "formats/gguf_llama.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/gguf_names.h"
#include "formats/shape.h"
#include "model/rope.h"
#include "quant/gguf_mixtures.h"

namespace jackscrew {

namespace {

[[noreturn]] void unsupported(const GgufFile& file, const std::string& what,
                              const std::string& hint) {
  throw Error(ErrorKind::model, fmt::format("{}: {} is not supported", file.path().string(), what),
              hint);
}

// The key `name` of the file's architecture: "llama.block_count".
std::string own_key(const GgufFile& file, const char* name) {
  return file.text("general.architecture") + "." + name;
}

const GgufArchitecture& architecture_of(const GgufFile& file) {
  // Parts behind the first have no other keys.
  if (file.integer("split.count", 1) > 1) {
    unsupported(file, "split.count above 1 (one part of a split file)",
                "join the parts first: llama-gguf-split --merge");
  }
  const std::string named = file.text("general.architecture");
  const GgufArchitecture* found = nullptr;
  std::string known;
  for (const GgufArchitecture& architecture : kGgufArchitectures) {
    if (named == architecture.name) found = &architecture;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.name);
  }
  if (found == nullptr) {
    unsupported(file, "general.architecture " + named, "supported architectures: " + known);
  }
  if (file.text("general.type", "model") == "adapter") {
    throw Error(
        ErrorKind::model,
        fmt::format("{} is an adapter for llama.cpp, not a model", file.path().string()),
        "llama.cpp takes it with --lora; give adapter= the directory that it was made from");
  }
  if (file.integer(own_key(file, "expert_count"), 0) > 0) {
    unsupported(file, own_key(file, "expert_count") + " above 0 (a mixture of experts)",
                "supported: models without experts");
  }
  return *found;
}

constexpr int64_t kLongestContext = int64_t{1} << 24;  // before scaling; those of today have 2^18

// What several operations in single precision leave of a number's precision.
constexpr double kSinglePrecision = 1e-6;

// The first divisor that is not the one that follows from the scaling; -1 where all are.
int64_t first_other_factor(std::span<const float> factors, double theta, const RopeScaling& scaling,
                           double tolerance) {
  for (int64_t i = 0; i < std::ssize(factors); ++i) {
    const double exponent = static_cast<double>(i) / static_cast<double>(factors.size());
    const double frequency = std::pow(theta, -exponent);
    const double expected = llama3_factor(frequency, scaling);
    const double found = static_cast<double>(factors[static_cast<size_t>(i)]);
    // llama.cpp's converter has the frequency in single precision; near the lower limit its error
    // grows by up to the factor.
    const double spread = llama3_factor(frequency * (1.0 - kSinglePrecision), scaling) -
                          llama3_factor(frequency * (1.0 + kSinglePrecision), scaling);
    if (!(std::abs(found - expected) <= tolerance * expected + spread)) return i;
  }
  return -1;
}

// Limits from which the divisors between 1 and the factor follow: the share of a frequency that is
// kept is linear in it. Only ratios of context and limits show, so that the context stays what it
// is. Two divisors fix the line. With fewer any line will do that passes between the frequencies
// that are kept and those that are divided by the whole factor.
std::optional<RopeScaling> with_fitted_limits(std::span<const float> factors, double theta,
                                              RopeScaling scaling) {
  double count = 0.0, sum_x = 0.0, sum_y = 0.0, sum_xx = 0.0, sum_xy = 0.0;
  double kept = 4.0, divided = 0.0;  // the lowest and the highest; no frequency is above 1
  for (int64_t i = 0; i < std::ssize(factors); ++i) {
    const auto divisor = static_cast<double>(factors[static_cast<size_t>(i)]);
    const double x = std::pow(theta, -static_cast<double>(i) / static_cast<double>(factors.size()));
    if (divisor <= 1.0) kept = std::min(kept, x);
    if (divisor >= scaling.factor) divided = std::max(divided, x);
    if (!(divisor > 1.0 && divisor < scaling.factor)) continue;
    const double y = (1.0 / divisor - 1.0 / scaling.factor) / (1.0 - 1.0 / scaling.factor);
    count += 1.0;
    sum_x += x;
    sum_y += y;
    sum_xx += x * x;
    sum_xy += x * y;
  }
  // share = (context * frequency / 2 pi - low) / (high - low)
  double slope = (count * sum_xy - sum_x * sum_y) / (count * sum_xx - sum_x * sum_x);
  double offset = (sum_y - slope * sum_x) / count;
  if (count < 2.0) {
    const double x = count == 0.0 ? (kept + divided) / 2.0 : sum_x;
    const double y = count == 0.0 ? 0.5 : sum_y;
    slope = 2.0 * std::max((1.0 - y) / (kept - x), y / (x - divided));
    offset = y - slope * x;
  }
  const double width = static_cast<double>(scaling.original_max_position_embeddings) /
                       (2.0 * std::numbers::pi * slope);
  scaling.low_freq_factor = -offset * width;
  scaling.high_freq_factor = scaling.low_freq_factor + width;
  const bool usable = slope > 0.0 && scaling.low_freq_factor > 0.0 && std::isfinite(width);
  constexpr double kTolerance = 1e-3;  // of a fit to numbers that are rounded
  if (!usable || first_other_factor(factors, theta, scaling, kTolerance) >= 0) return std::nullopt;
  return scaling;
}

// Llama 3 files hold the divisors of the rotary frequencies instead of the parameters from which
// these were computed. The divisor of the lowest frequency is the factor; all others must then
// follow from the release's limits, and from a context before scaling that is a power of two; or
// else from other limits.
RopeScaling scaling_from_factors(const GgufFile& file, const GgufTensor& tensor,
                                 const ModelConfig& config) {
  const int64_t pairs = config.head_dim / 2;
  const std::string what = fmt::format("tensor {} {} {}", tensor.name, ggml_type_name(tensor.type),
                                       shape_text(tensor.shape));
  if (tensor.format != "f32" || tensor.shape != std::vector<int64_t>{pairs}) {
    unsupported(file, what, fmt::format("expected: F32 [{}]", pairs));
  }
  std::vector<float> factors(static_cast<size_t>(pairs));
  std::memcpy(factors.data(), tensor.bytes.data(), tensor.bytes.size());
  RopeScaling scaling;
  scaling.kind = RopeScaling::Kind::llama3;
  scaling.factor = static_cast<double>(factors.back());
  if (!std::isfinite(scaling.factor) || scaling.factor < 1.0) {
    fail(ErrorKind::model, "{}: {} ends in {}", file.path().string(), what, scaling.factor);
  }
  const RopeScaling release = scaling;
  const int64_t other = first_other_factor(factors, config.rope_theta, release, kSinglePrecision);
  if (other < 0) return release;
  for (int64_t context = 16; context <= kLongestContext; context *= 2) {
    scaling.original_max_position_embeddings = context;
    if (first_other_factor(factors, config.rope_theta, scaling, kSinglePrecision) < 0) {
      return scaling;
    }
  }
  if (const auto fitted = with_fitted_limits(factors, config.rope_theta, release)) return *fitted;
  unsupported(
      file, fmt::format("{} with {} at {}", what, factors[static_cast<size_t>(other)], other),
      "supported: rope factors that follow from a factor, limits and a context, as those of "
      "Llama 3.1 and 3.2 do");
}

// YaRN's limits. llama.cpp takes the defaults for these architectures whatever a file says, so that
// limits which leave nothing between them are no reason to refuse it.
void parse_yarn_limits(const GgufFile& file, RopeScaling& scaling) {
  const double fast = file.number(own_key(file, "rope.scaling.yarn_beta_fast"), scaling.beta_fast);
  const double slow = file.number(own_key(file, "rope.scaling.yarn_beta_slow"), scaling.beta_slow);
  if (!(slow > 0.0 && fast > slow && std::isfinite(fast))) return;
  scaling.beta_fast = fast;
  scaling.beta_slow = slow;
}

RopeScaling parse_scaling(const GgufFile& file, const ModelConfig& config) {
  const auto own = [&](const char* name) { return own_key(file, name); };
  RopeScaling scaling;
  const bool has_factor = file.has(own("rope.scaling.factor"));
  const bool has_older = !has_factor && file.has(own("rope.scale_linear"));
  // As llama.cpp has it: a factor alone, by its name or the older one, is of linear scaling.
  const std::string type =
      file.text(own("rope.scaling.type"), has_factor || has_older ? "linear" : "none");
  if (type == "linear") {
    scaling.factor = file.number(own(has_older ? "rope.scale_linear" : "rope.scaling.factor"), 1.0);
    if (scaling.factor == 0.0) scaling.factor = 1.0;  // as in llama.cpp
    if (scaling.factor != 1.0) scaling.kind = RopeScaling::Kind::linear;
  } else if (type == "yarn") {
    scaling.kind = RopeScaling::Kind::yarn;
    scaling.factor = file.number(own("rope.scaling.factor"));
    scaling.original_max_position_embeddings =
        file.integer(own("rope.scaling.original_context_length"), config.max_position_embeddings);
    scaling.attention_factor = file.number(own("rope.scaling.attn_factor"), 1.0) *
                               RopeScaling::yarn_attention_factor(scaling.factor);
    parse_yarn_limits(file, scaling);
  } else if (type != "none") {
    unsupported(file, own("rope.scaling.type") + " " + type, "supported: none, linear, yarn");
  }
  const GgufTensor* factors = file.find(kGgufRopeFactors);
  if (factors == nullptr) return scaling;
  if (scaling.kind != RopeScaling::Kind::none) {
    unsupported(file, fmt::format("{} beside {} rope scaling", kGgufRopeFactors, type), "");
  }
  return scaling_from_factors(file, *factors, config);
}

// The size of the vocabulary is that of the embedding, which may be padded beyond the token list.
int64_t vocabulary(const GgufFile& file, int64_t tokens) {
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr) return file.integer(own_key(file, "vocab_size"), tokens);
  const int64_t rows = embedding->shape.front();
  if (tokens > rows) {
    fail(ErrorKind::model, "{}: {} tokens but token_embd.weight has {} rows", file.path().string(),
         tokens, rows);
  }
  return rows;
}

// The Hugging Face name of a tensor; empty when the model has no such tensor. "blk.3.attn_q.weight"
// of one with more than 3 layers gives "model.layers.3.self_attn.q_proj.weight".
std::string hf_name(const std::string& name, const ModelConfig& config) {
  for (const GgufName& pair : kGgufModelNames) {
    if (name == pair.gguf) return pair.hf;
  }
  if (!name.starts_with("blk.")) return {};
  const size_t dot = name.find('.', 4);
  if (dot == std::string::npos) return {};
  const std::string number = name.substr(4, dot - 4);
  const std::optional<int64_t> layer = parse_int(number);
  if (!layer || *layer < 0 || *layer >= config.num_hidden_layers ||
      std::to_string(*layer) != number)
    return {};
  for (const GgufName& pair : kGgufLayerNames) {
    if (pair.only != nullptr && !(config.architecture->*pair.only)) continue;
    if (name.compare(dot + 1, std::string::npos, pair.gguf) == 0) {
      return fmt::format("model.layers.{}.{}", number, pair.hf);
    }
  }
  return {};
}

// The id of a special token. Where the file names none, for which some programs write 2^32 - 1, it
// is `usual`, if there is such a token; else -1.
int64_t token_id(const GgufFile& file, const char* key, int64_t tokens, int64_t usual = -1) {
  const int64_t id = file.integer(key, UINT32_MAX);
  if (id == UINT32_MAX) return usual < tokens ? usual : -1;
  if (id < 0 || id >= tokens) {
    fail(ErrorKind::model, "{}: {} = {} is not one of {} tokens", file.path().string(), key, id,
         tokens);
  }
  return id;
}

std::optional<bool> flag(const GgufFile& file, const char* key) {
  if (!file.has(key)) return std::nullopt;
  return file.boolean(key);
}

// A size that all blocks have. The file may name it block by block, in an array.
int64_t size_in_blocks(const GgufFile& file, const std::string& key, int64_t blocks,
                       std::optional<int64_t> fallback = {}) {
  if (file.type(key) != GgufType::array) return file.integer(key, fallback);
  const std::vector<int64_t> sizes = file.integers(key);
  if (sizes.empty() || std::ssize(sizes) != blocks) {
    fail(ErrorKind::model, "{}: {} has {} for {}", file.path().string(), key,
         counted(std::ssize(sizes), "item"), counted(blocks, "block"));
  }
  if (std::ranges::adjacent_find(sizes, std::not_equal_to<>()) != sizes.end()) {
    unsupported(file, key + " that differs by block", "supported: blocks of one size");
  }
  return sizes.front();
}

ModelConfig read_config(const GgufFile& file) {
  const std::string where = file.path().string();
  const auto own = [&](const char* name) { return own_key(file, name); };
  ModelConfig config;
  config.architecture = find_architecture(architecture_of(file).architecture);
  const GgufTokenizerMetadata tokenizer = gguf_tokenizer(file);
  config.vocab_size = vocabulary(file, static_cast<int64_t>(tokenizer.tokens.size()));
  config.hidden_size = file.integer(own("embedding_length"));
  config.num_hidden_layers = file.integer(own("block_count"));
  const int64_t blocks = config.num_hidden_layers;
  config.intermediate_size = size_in_blocks(file, own("feed_forward_length"), blocks);
  config.num_attention_heads = size_in_blocks(file, own("attention.head_count"), blocks);
  config.num_key_value_heads =
      size_in_blocks(file, own("attention.head_count_kv"), blocks, config.num_attention_heads);
  config.max_position_embeddings = file.integer(own("context_length"));
  config.rms_norm_eps = file.number(own("attention.layer_norm_rms_epsilon"));
  config.rope_theta = file.number(own("rope.freq_base"), 10000.0);
  config.tie_word_embeddings = file.find("output.weight") == nullptr;
  if (file.has(own("attention.key_length"))) {
    config.head_dim = file.integer(own("attention.key_length"));
  } else if (config.num_attention_heads <= 0 ||
             config.hidden_size % config.num_attention_heads != 0) {
    fail(ErrorKind::model, "{}: {} = {} does not divide into {} heads", where,
         own("embedding_length"), config.hidden_size, config.num_attention_heads);
  } else {
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  for (const char* name : {"attention.value_length", "rope.dimension_count"}) {
    const std::string key = own(name);
    if (const int64_t value = file.integer(key, config.head_dim); value != config.head_dim) {
      unsupported(file, fmt::format("{} = {} beside heads of {}", key, value, config.head_dim), "");
    }
  }
  if (!file.boolean(own("attention.causal"), true)) {
    unsupported(file, own("attention.causal") + " = false",
                "supported: models whose tokens see none that follow");
  }
  if (const int64_t window = file.integer(own("attention.sliding_window"), 0); window != 0) {
    // A "llama" with a window is a Mistral; a Qwen's file does not say which blocks have it.
    if (config.architecture != &llama_architecture()) {
      unsupported(file, own("attention.sliding_window"), "");
    }
    config.architecture = find_architecture("MistralForCausalLM");
    config.sliding_window = window;
  }
  config.bos_token_id = tokenizer.bos_id;
  config.pad_token_id = tokenizer.pad_id;
  std::vector<int64_t>& ends = config.eos_token_ids;
  for (const int64_t id : {tokenizer.eos_id, tokenizer.eot_id, tokenizer.eom_id}) {
    if (id >= 0 && std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
  }
  const auto validate = [&] {
    try {
      config.validate();
    } catch (const Error& error) {
      throw Error(error.kind(), where + ": " + error.what(), error.hint());
    }
  };
  validate();
  // transformers reads no such Llama.
  if (config.architecture == &llama_architecture() &&
      config.hidden_size % config.num_attention_heads != 0) {
    config.architecture = find_architecture("MistralForCausalLM");
  }
  if (config.architecture->nope) {
    // GGUF does not say which blocks do not rotate.
    config.unrotated = unrotated_every(kUnrotatedInterval, config.num_hidden_layers);
  }
  config.rope_scaling = parse_scaling(file, config);
  validate();
  return config;
}

GgufTokenizerMetadata read_tokenizer(const GgufFile& file) {
  GgufTokenizerMetadata out;
  out.model = file.text("tokenizer.ggml.model", "");
  out.pre = file.text("tokenizer.ggml.pre", "");
  out.tokens = file.texts("tokenizer.ggml.tokens");
  out.token_types = file.integers("tokenizer.ggml.token_type");
  out.merges = file.texts("tokenizer.ggml.merges");
  out.scores = file.numbers("tokenizer.ggml.scores");
  const size_t count = out.tokens.size();
  for (const size_t size : {out.token_types.size(), out.scores.size()}) {
    if (size != 0 && size != count) {
      fail(ErrorKind::model, "{}: {} tokens but {} token types and {} scores", file.path().string(),
           count, out.token_types.size(), out.scores.size());
    }
  }
  // A file may name special tokens without a token list: the embedding's shape is the limit then.
  const int64_t limit = count != 0 ? static_cast<int64_t>(count) : vocabulary(file, 0);
  // As llama.cpp has it: SentencePiece's usual ids.
  const bool sentencepiece = out.model == "llama";
  out.bos_id = token_id(file, "tokenizer.ggml.bos_token_id", limit, sentencepiece ? 1 : -1);
  out.eos_id = token_id(file, "tokenizer.ggml.eos_token_id", limit, sentencepiece ? 2 : -1);
  out.eot_id = token_id(file, "tokenizer.ggml.eot_token_id", limit);
  out.eom_id = token_id(file, "tokenizer.ggml.eom_token_id", limit);
  out.unk_id = token_id(file, "tokenizer.ggml.unknown_token_id", limit);
  out.pad_id = token_id(file, "tokenizer.ggml.padding_token_id", limit);
  out.add_bos = flag(file, "tokenizer.ggml.add_bos_token");
  out.add_eos = flag(file, "tokenizer.ggml.add_eos_token");
  out.add_space_prefix = flag(file, "tokenizer.ggml.add_space_prefix");
  out.chat_template = file.text("tokenizer.chat_template", "");
  out.tool_template = file.text("tokenizer.chat_template.tool_use", "");
  return out;
}

}  // namespace

double llama3_factor(double frequency, const RopeScaling& scaling) {
  const double kept = llama3_kept_share(frequency, scaling);
  if (kept == 0.0) return scaling.factor;  // exactly, which the quotient need not be
  return 1.0 / ((1.0 - kept) / scaling.factor + kept);
}

ModelConfig gguf_config(const GgufFile& file) {
  return file.read_whole([&] { return read_config(file); });
}

GgufTokenizerMetadata gguf_tokenizer(const GgufFile& file) {
  return file.read_whole([&] { return read_tokenizer(file); });
}

GgufSource::GgufSource(const fs::path& path) : file_(path), config_(gguf_config(file_)) {
  for (const GgufTensor& stored : file_.tensors()) {
    if (stored.name == kGgufRopeFactors) continue;  // part of the configuration
    const std::string name = hf_name(stored.name, config_);
    if (name.empty()) {
      unsupported(file_, "tensor " + stored.name,
                  fmt::format("supported: the tensors of {}", config_.architecture->name));
    }
    Slot slot;
    slot.tensor.name = name;
    if (!stored.format.empty()) slot.tensor.format = unowned(find_format(stored.format));
    slot.tensor.shape = stored.shape;
    slot.tensor.bytes = stored.bytes;
    slot.tensor.interleaved_heads = gguf_interleaved_heads(config_, name);
    slot.stored = &stored;
    // interleaved_row() divides by these.
    const int64_t heads = slot.tensor.interleaved_heads;
    if (heads != 0 && stored.shape.front() != heads * config_.head_dim) {
      fail(ErrorKind::model, "{}: tensor {} of shape {} does not hold {} heads of {}",
           path.string(), stored.name, shape_text(stored.shape), heads, config_.head_dim);
    }
    slots_[name] = std::move(slot);
  }
}

const StoredTensor* GgufSource::find(std::string_view name) const {
  const auto found = slots_.find(name);
  if (found == slots_.end()) return nullptr;
  const Slot& slot = found->second;
  if (slot.tensor.format == nullptr) {
    unsupported(
        file_, fmt::format("tensor {} in {}", slot.stored->name, ggml_type_name(slot.stored->type)),
        "supported: " + readable_ggml_types());
  }
  return &slot.tensor;
}

std::vector<std::string> GgufSource::names() const {
  std::vector<std::string> out;
  for (const auto& [name, slot] : slots_) out.push_back(name);
  return out;
}

std::string GgufSource::file_type() const {
  constexpr const char* kKey = "general.file_type";
  const bool says = file_.type(kKey) == GgufType::u32;
  return says ? gguf_file_type_name(file_.integer(kKey)) : std::string();
}

void GgufSource::release(const StoredTensor& tensor) const {
  file_.release(tensor.bytes);
}

}  // namespace jackscrew
