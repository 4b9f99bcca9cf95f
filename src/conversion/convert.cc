#include "conversion/convert.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/process_memory.h"
#include "base/text.h"
#include "conversion/result_texts.h"
#include "formats/bitsandbytes.h"
#include "formats/gguf_adapter.h"
#include "formats/hf_config.h"
#include "formats/quantised_layout.h"
#include "formats/safetensors.h"
#include "quant/nf4.h"
#include "quant/plain.h"
#include "session/adapter.h"
#include "session/fit.h"
#include "session/loading.h"
#include "session/stage_loader.h"
#include "text/tokenizer/gguf_tokenizer.h"

namespace jackscrew {

namespace {

// The tokenizer, or nullopt where the files have none that can be used here, with the reason in
// `notes`.
std::optional<Tokenizer> usable_tokenizer(const Recipe& recipe, const ModelFiles& files,
                                          std::vector<std::string>& notes) {
  try {
    return make_tokenizer(recipe.tokenizer, files);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::model || recipe.tokenizer != "auto") throw;
    const bool has_files = !tokenizer_texts(files).empty();
    notes.push_back(fmt::format(
        "{}: {}",
        has_files ? "the tokenizer's files are copied as they are" : "no tokenizer is written",
        error.what()));
    if (recipe.options.was_set("chat_template")) {
      notes.push_back("chat_template is not written: it needs a tokenizer that can be used");
    }
    return std::nullopt;
  }
}

// "SmolLM2-135M" for the directory or the GGUF file of that name.
std::string model_name(const std::string& origin) {
  const fs::path path = named_path(origin);
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

// Gives the tokens that end the model's texts, but have no place yet, those that are free:
// llama.cpp stops at each of the three. The end of a message it uses for nothing else, and an end
// of a turn it finds by its text.
void place_end_tokens(const ModelFiles& files, const Tokenizer& tokenizer, GgufModel& model,
                      std::vector<std::string>& notes) {
  std::vector<int64_t> ends = model.config.eos_token_ids;
  if (files.has_own_tokens(tokenizer)) {
    ends.insert(ends.end(), files.end_tokens.begin(), files.end_tokens.end());
  }
  GgufTokenizerMetadata& out = model.tokenizer;
  int64_t* const places[] = {&out.eos_id, &out.eom_id, &out.eot_id};
  const auto find_place = [&](int64_t id) {
    return std::ranges::find_if(places, [&](const int64_t* place) { return *place == id; });
  };
  std::set<std::string> left;
  for (const int64_t id : ends) {
    if (id < 0 || id >= tokenizer.vocab_size() || find_place(id) != std::end(places)) continue;
    if (const auto free = find_place(-1); free != std::end(places)) {
      **free = id;
    } else {
      left.insert(one_line(tokenizer.data().tokens[static_cast<size_t>(id)]));
    }
  }
  if (left.empty()) return;
  notes.push_back(
      fmt::format("a GGUF file names three tokens that end a text: llama.cpp may go on after {}",
                  fmt::join(left, ", ")));
}

GgufModel gguf_model(const Recipe& recipe, const ModelFiles& files,
                     std::vector<std::string>& notes) {
  const Tokenizer tokenizer = make_tokenizer(recipe.tokenizer, files);
  const ChatFormat format = recipe_chat_format(recipe, tokenizer);
  GgufModel model{exported_config(files, tokenizer), model_name(files.origin),
                  to_gguf_tokenizer(tokenizer.data())};
  if (auto templates = other_templates(format, tokenizer)) {
    model.tokenizer.chat_template = std::move(templates->general);
    model.tokenizer.tool_template = std::move(templates->tools);
  }
  if (const auto end = end_of_answers(format, tokenizer); end && *end != tokenizer.eos()) {
    model.tokenizer.eot_id = *end;
  }
  model.tokenizer.eom_id = tokenizer.find_special(kEndOfMessage).value_or(-1);
  place_end_tokens(files, tokenizer, model, notes);
  if (tokenizer.data().add_eos) {
    notes.push_back("as the file that was read says, llama.cpp will put EOS behind every prompt");
  }
  if (const std::string text = changed_in_gguf(tokenizer, model.tokenizer); !text.empty()) {
    notes.push_back(
        fmt::format("GGUF cannot say all of this tokenizer: \"{}\", for one, will be "
                    "cut into other tokens, at least behind a special one or at the beginning",
                    one_line(text)));
  }
  const int64_t window = model.config.sliding_window;
  if (window > 0 && window < model.config.max_position_embeddings) {
    notes.push_back(
        fmt::format("llama.cpp ignores the sliding window of {} tokens in a GGUF file: "
                    "it will read longer texts otherwise than this model does",
                    window));
  }
  const RopeScaling &scaling = model.config.rope_scaling, usual;
  if (scaling.kind == RopeScaling::Kind::yarn &&
      (scaling.beta_fast != usual.beta_fast || scaling.beta_slow != usual.beta_slow)) {
    notes.push_back(
        fmt::format("llama.cpp ignores YaRN's beta_fast {} and beta_slow {} in a GGUF file "
                    "of this architecture: it takes {} and {}",
                    scaling.beta_fast, scaling.beta_slow, usual.beta_fast, usual.beta_slow));
  }
  return model;
}

// The file type's name where all weights keep their formats; empty where some do not, or where the
// type has no name.
std::string kept_type(const StorageChoice& choice, const std::vector<ModelTensor>& tensors) {
  const auto stays = [&](const ModelTensor& tensor) {
    const StoredTensor* kept = choice.kept->find(tensor.spec.name);
    return kept != nullptr && kept->format.get() == tensor.format;
  };
  if (choice.storage != "keep" || !std::ranges::all_of(tensors, stays)) return {};
  const std::string type = choice.kept->file_type();
  return gguf_file_type_of(type) ? type : std::string();
}

// A line for each adapter that comes with another chat template than the one that is written, which
// is the first adapter's or the model's.
std::vector<std::string> notes_on_templates(const Recipe& recipe, const ModelFiles& base) {
  std::vector<std::string> notes;
  if (recipe.options.was_set("chat_template") || !base.tokenizer) return notes;
  const std::string& written = base.lends_templates ? base.origin : base.tokenizer_origin;
  for (size_t i = 1; i < recipe.adapters.size(); ++i) {
    const std::string& adapter = recipe.adapters[i];
    const ModelFiles other = open_tokenizer(recipe.model, adapter, recipe.tokenizer);
    if (!other.tokenizer || other.tokenizer_origin != adapter) continue;
    if (other.tokenizer->chat_template == base.tokenizer->chat_template &&
        other.tokenizer->tool_template == base.tokenizer->tool_template) {
      continue;
    }
    notes.push_back(
        fmt::format("{} has another chat template than {}, whose is written", adapter, written));
  }
  return notes;
}

// The type to which bitsandbytes decodes a weight that stays in NF4, as its file says; else empty.
std::string own_nf4_dtype(const ModelFiles& files, const WeightSource& kept,
                          const WeightSpec& weight) {
  const StoredTensor& from = stored_tensor(files, kept, weight);
  const bool stays = from.format.get() == &nf4_format() &&
                     stored_tensor(files, *files.source, weight).format.get() == &nf4_format();
  return stays ? from.decoded_dtype : std::string();
}

// The type in which bitsandbytes multiplies, as the model's configuration says; `usual` where it
// has none of quantisation.
std::string compute_dtype_of(const ModelFiles& files, const std::string& usual) {
  const QuantizationConfig config = read_quantization_config(files.origin);
  if (config.fields == nullptr) return usual;
  return JsonFields(*config.fields, config.where)
      .text("bnb_4bit_compute_dtype", "float32");  // as transformers
}

}  // namespace

Texts directory_texts(const Recipe& recipe, const ModelFiles& files, const char* dtype,
                      std::vector<std::string>& notes) {
  Texts texts;
  if (const auto tokenizer = usable_tokenizer(recipe, files, notes)) {
    const ChatFormat format = recipe_chat_format(recipe, *tokenizer);
    texts = config_texts(files, *tokenizer, format, dtype);
    texts.merge(tokenizer_texts(files, *tokenizer, format));
  } else {
    texts = config_texts(files, dtype);
    texts.merge(tokenizer_texts(files));
  }
  return texts;
}

ConvertedModel::ConvertedModel(const Recipe& recipe)
    : ConvertedModel(recipe, open_model(recipe.model, recipe.adapter, recipe.tokenizer),
                     [&](int64_t bytes, int64_t held) {
                       require_host_memory(bytes, recipe,
                                           "close other programs, or raise the limit", held);
                     }) {}

ConvertedModel::ConvertedModel(const Recipe& recipe, ModelFiles model, const RoomCheck& check)
    : base(std::move(model)) {
  if (base.source == nullptr) {
    throw Error(ErrorKind::usage, fmt::format("{} is a shape without weights", base.origin),
                "give a model directory or a GGUF file");
  }
  check_tied(base);
  warn_of_unused_tensors(base);
  for (size_t i = 0; i < recipe.adapters.size(); ++i) {
    adapters.push_back(
        {recipe.adapters[i], recipe.adapter_weights.empty() ? 1.0 : recipe.adapter_weights[i]});
  }
  if (adapters.empty()) return;
  notes = notes_on_templates(recipe, base);
  auto source = std::make_unique<MergedSource>(recipe, base, adapters, check);
  merging_bytes = source->most_bytes();
  held_bytes = source->held_bytes();
  merged = base;
  merged->source = std::move(source);
}

std::string ConvertedModel::name() const {
  std::string name = base.origin;
  for (const WeightedAdapter& adapter : adapters) name += " with " + adapter.directory;
  return name;
}

Conversion::Conversion(const Recipe& recipe, const ModelFiles& files, const StorageChoice& choice)
    : tensors_(tensors_to_write(files, choice, report_.notes)) {
  for (const ModelTensor& tensor : tensors_) {
    ConversionReport::Share& share = report_.formats[tensor.format->name()];
    ++share.tensors;
    share.bytes = checked_add(share.bytes, tensor.bytes());
  }
  if (choice.files == ModelFormat::hf) {
    plan_directory(recipe, files, *choice.kept);
  } else {
    plan_gguf(recipe, files, choice);
  }
}

std::unique_ptr<ModelWriter> Conversion::begin(const Recipe& recipe, const fs::path& path,
                                               const std::vector<ModelTensor>& tensors) const {
  if (gguf_) return make_gguf_model_writer(path, *gguf_, tensors);
  write_texts(texts_, path);
  return make_safetensors_model_writer(path, tensors, nf4_dtypes_, recipe.max_shard_bytes);
}

void Conversion::plan_directory(const Recipe& recipe, const ModelFiles& files,
                                const WeightSource& kept) {
  WeightTypes types;
  for (const ModelTensor& tensor : tensors_) {
    const char* own = safetensors_dtype(*tensor.format);
    if (own != nullptr) types.add(own, tensor.spec.is_block_matrix());
  }
  const char* dtype = torch_dtype(types);
  texts_ = directory_texts(recipe, files, dtype, report_.notes);
  std::string own_dtype;                         // of weights that stay in NF4
  std::vector<std::string> plain = {"lm_head"};  // modules that bitsandbytes must leave alone
  for (const auto& [weight, format] : tensors_) {
    if (format == &nf4_format()) {
      const std::string own = own_nf4_dtype(files, kept, weight);
      nf4_dtypes_[weight.name] = own.empty() ? dtype : own;
      if (!own.empty()) own_dtype = own;
    } else if (weight.is_block_matrix()) {
      plain.push_back(weight.path());
    }
  }
  if (!nf4_dtypes_.empty()) {
    std::string& config = texts_["config.json"];
    const auto compute_dtype = own_dtype.empty() ? dtype : compute_dtype_of(files, own_dtype);
    config = add_quantization_config(config, nf4_quantization_config(compute_dtype, plain));
  }
  const FileSizes weights = safetensors_model_sizes(tensors_, nf4_dtypes_, recipe.max_shard_bytes);
  report_.bytes = checked_add(bytes_of(texts_), weights.all);
  largest_file_ = weights.largest;
}

void Conversion::plan_gguf(const Recipe& recipe, const ModelFiles& files,
                           const StorageChoice& choice) {
  gguf_ = gguf_model(recipe, files, report_.notes);
  const GgufMixture* mixture = mixture_of(choice);
  if (const auto* from = dynamic_cast<const GgufSource*>(choice.kept)) gguf_->from = &from->file();
  report_.file_type = mixture != nullptr ? std::string(mixture->name) : kept_type(choice, tensors_);
  gguf_->file_type = gguf_file_type_of(report_.file_type);
  report_.bytes = largest_file_ = gguf_model_bytes(*gguf_, tensors_);
}

JsonObject ConversionReport::to_json() const {
  JsonObject storage;
  for (const auto& [name, share] : formats) {
    storage.add(name, JsonObject().add("tensors", share.tensors).add("bytes", share.bytes));
  }
  JsonObject json;
  json.add("bytes", bytes);
  if (!file_type.empty()) json.add("file_type", file_type);
  return json.add("storage", storage).add("notes", notes);
}

FileSizes plan_conversion(const Recipe& recipe, const ModelFiles& files,
                          const StorageChoice& choice) {
  return Conversion(recipe, files, choice).sizes();
}

ConversionReport write_converted(const Recipe& recipe, const ConvertedModel& model,
                                 ModelOutput& output, const ProgressStyle& style) {
  const ModelFiles& files = model.result();
  const Conversion conversion(recipe, files,
                              {output.format(), recipe.storage, model.base.source.get()});
  // Pages of the program itself, and the buffers of its files.
  constexpr int64_t kOfProgram = int64_t{4} << 20;
  const int64_t writing = model.merging_bytes - model.held_bytes +
                          writing_memory(files, conversion.tensors(), output.format());
  require_memory(writing + kOfProgram, "writing a weight at a time",
                 "close other programs, or raise the limit");
  output.begin(conversion.sizes(), writing);
  const auto writer = conversion.begin(recipe, output.path());
  write_weights(recipe, files, conversion.tensors(), *writer, style);
  ConversionReport report = conversion.report();
  report.notes.insert(report.notes.end(), model.notes.begin(), model.notes.end());
  return report;
}

ConversionReport write_adapter(const Recipe& recipe, ModelOutput& output) {
  if (recipe.adapters.size() > 1 || !recipe.adapter_weights.empty()) {
    throw Error(
        ErrorKind::usage, "format=gguf_adapter writes one adapter as it is",
        "merge makes one model of several; llama.cpp has a scale for each that it is given");
  }
  if (recipe.storage != "keep" && recipe.storage != "f32" && recipe.storage != "f16") {
    throw Error(ErrorKind::usage,
                fmt::format("an adapter cannot be written in storage={}", recipe.storage),
                "format=gguf_adapter has storage=f32 (or keep) and f16");
  }
  const Format& format = recipe.storage == "f16" ? f16_format() : f32_format();
  const ModelFiles files = open_model(recipe.model, recipe.adapter, recipe.tokenizer);
  const PeftAdapter adapter = read_peft_adapter(recipe.adapter);
  int64_t bytes = 0;
  for (const PeftTensor& tensor : adapter.tensors) {
    tensor.for_parts([&](int64_t, std::span<const float> part) {
      require_finite(part, tensor, recipe.adapter);
    });
    bytes = checked_add(bytes, format.row_bytes(tensor.size()));
  }
  output.begin({bytes, bytes});
  ConversionReport report;
  report.bytes =
      write_gguf_adapter(output.path(), files.config, model_name(recipe.adapter), adapter, format);
  report.formats[format.name()] = {std::ssize(adapter.tensors), bytes};
  const std::string contradiction = adapter.contradiction(files.config.num_hidden_layers);
  if (!contradiction.empty()) report.notes.push_back(contradiction);
  // GGUF models may be in bf16 or f16, too.
  if (!adapter.base_storage.empty() &&
      safetensors_dtype(find_format(adapter.base_storage)) == nullptr) {
    report.notes.push_back(
        fmt::format("the adapter makes up for what storage={} takes from the weights, and no GGUF "
                    "file has such: merge makes a model in which it is right",
                    adapter.base_storage));
  }
  return report;
}

}  // namespace jackscrew
