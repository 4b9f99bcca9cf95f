#include "train/export.h"

#include <algorithm>
#include <map>
#include <vector>

#include "formats/hf_config.h"
#include "formats/peft.h"
#include "formats/tensor_io.h"
#include "quant/plain.h"
#include "text/tokenizer_files.h"
#include "text/tokenizer_json.h"
#include "train/output_dir.h"

namespace jackscrew {

namespace {

// Masters of weights that wait their turn, by the name of the weight. What learns all the time is
// exported as it is stored, which is what was evaluated.
using Masters = std::map<std::string, Tensor>;

Masters masters_of(const Session& session) {
  Masters masters;
  session.visit([&](const StateRef& state) {
    if (state.role == StateRole::master) masters[state.name] = state.view;
  });
  return masters;
}

// Weights in a format that safetensors has keep their type, all others become F32.
SafetensorsSpec weight_spec(const Weight& weight) {
  const Format& format = weight.stored_format();
  SafetensorsSpec spec{weight.name(),
                       &format == &bf16_format()  ? "BF16"
                       : &format == &f16_format() ? "F16"
                                                  : "F32",
                       {}};
  if (!weight.is_vector()) spec.shape.push_back(weight.rows());
  spec.shape.push_back(weight.cols());
  return spec;
}

template <class To>
void write_rows(ShardedSafetensorsWriter& writer, const std::string& name,
                const std::vector<float>& values, int64_t count) {
  std::vector<To> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) out[i] = from_float<To>(values[i]);
  writer.write(name, {reinterpret_cast<const uint8_t*>(out.data()), out.size() * sizeof(To)});
}

// Rows [begin, end) as exactly as they are known.
void read_rows(Session& session, const Weight& weight, const Masters& masters, int64_t begin,
               int64_t end, std::vector<float>& values) {
  const Tensor out(values.data(), DType::f32, {end - begin, weight.cols()});
  const auto found = masters.find(weight.name());
  if (found == masters.end()) {
    session.read_weight(weight, begin, end, out);
    return;
  }
  const Tensor from = found->second.reshaped({weight.rows(), weight.cols()}).rows(begin, end);
  if (from.dtype() == DType::f32) {
    session.ops().copy(out, from);
    return;
  }
  std::vector<bf16> narrow_values(static_cast<size_t>(out.size()));
  session.ops().copy(Tensor(narrow_values.data(), DType::bf16, {out.rows(), out.cols()}), from);
  std::transform(narrow_values.begin(), narrow_values.end(), values.begin(),
                 [](bf16 value) { return to_float(value); });
}

void write_weight(Session& session, const Weight& weight, const Masters& masters,
                  ShardedSafetensorsWriter& writer) {
  const Format& format = weight.stored_format();
  const int64_t step = std::min(weight.rows(), panel_rows(weight.cols(), dtype_size(DType::f32)));
  std::vector<float> values(static_cast<size_t>(step * weight.cols()));
  for (int64_t begin = 0; begin < weight.rows(); begin += step) {
    const int64_t end = std::min(weight.rows(), begin + step);
    const int64_t count = (end - begin) * weight.cols();
    read_rows(session, weight, masters, begin, end, values);
    if (&format == &bf16_format()) {
      write_rows<bf16>(writer, weight.name(), values, count);
    } else if (&format == &f16_format()) {
      write_rows<f16>(writer, weight.name(), values, count);
    } else {
      write_rows<float>(writer, weight.name(), values, count);
    }
  }
}

// False where there is none.
bool copy_text(const fs::path& from, const char* name, const fs::path& to) {
  if (!fs::exists(from / name)) return false;
  write_text_atomic(to / name, read_text(from / name));
  return true;
}

// The files of a tokenizer: those of the model where they are a directory's and the tokenizer is
// its own, else made from its data.
void write_tokenizer(const ModelFiles& files, const Tokenizer& tokenizer, const fs::path& to) {
  const bool own = files.tokenizer && files.tokenizer->tokens == tokenizer.data().tokens;
  if (own && fs::is_directory(files.origin)) {
    for (const char* name : kTokenizerFiles) copy_text(files.origin, name, to);
    return;
  }
  write_text_atomic(to / "tokenizer.json", to_tokenizer_json(tokenizer.data()));
  write_text_atomic(to / "tokenizer_config.json", to_tokenizer_config_json(tokenizer.data()));
}

void export_model(Session& session, const ModelFiles& files, const Tokenizer& tokenizer,
                  const fs::path& to) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& parameter : session.stage().parameters()) {
    specs.push_back(weight_spec(*parameter->weight));
  }
  const bool bf16 = std::any_of(specs.begin(), specs.end(),
                                [](const SafetensorsSpec& spec) { return spec.dtype == "BF16"; });
  write_text_atomic(to / "config.json",
                    write_hf_config(files.config, bf16 ? "bfloat16" : "float32"));
  // The model's own may end answers by more tokens than config.json does.
  constexpr const char* kGeneration = "generation_config.json";
  if (!fs::is_directory(files.origin) || !copy_text(files.origin, kGeneration, to)) {
    write_text_atomic(to / kGeneration, write_hf_generation_config(files.config));
  }
  write_tokenizer(files, tokenizer, to);
  ShardedSafetensorsWriter writer(to, std::move(specs));
  const Masters masters = masters_of(session);
  for (const auto& parameter : session.stage().parameters()) {
    write_weight(session, *parameter->weight, masters, writer);
  }
  writer.close();
}

// Moves the files of a finished directory into place, the weights last: whoever sees them sees a
// model.
void move_files(const fs::path& from, const fs::path& to) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(from)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(a.extension() == ".safetensors", a) <
           std::pair(b.extension() == ".safetensors", b);
  });
  std::error_code error;
  for (const fs::path& path : paths) {
    fs::rename(path, to / path.filename(), error);
    if (error) {
      throw Error(
          ErrorKind::generic,
          fmt::format("cannot move {} to {}: {}", path.string(), to.string(), error.message()),
          fmt::format("the result is whole in {}", from.string()));
    }
  }
  sync_directory(to);
  fs::remove(from, error);
}

}  // namespace

void export_result(Session& session, const ModelFiles& files, const Tokenizer& tokenizer,
                   const ChatFormat& format, const fs::path& output_dir) {
  const fs::path beside = result_staging(output_dir);
  if (const AdapterDescription* adapter = session.learner().adapter()) {
    export_adapter(session.stage(), session.ops(), *adapter, files.origin, beside);
  } else {
    AtomicDirectory directory(beside);
    export_model(session, files, tokenizer, directory.path());
    directory.commit();
  }
  if (!format.source.empty() && format.source != tokenizer.data().chat_template) {
    write_text_atomic(beside / kChatTemplateFile, format.source);
  }
  move_files(beside, output_dir);
}

void export_adapter(const Stage& stage, Ops& ops, const AdapterDescription& adapter,
                    const std::string& base_model, const fs::path& directory) {
  PeftConfig config;
  config.r = adapter.rank;
  config.lora_alpha = adapter.alpha;
  config.lora_dropout = adapter.dropout;
  config.use_rslora = adapter.use_rslora;
  config.target_modules = adapter.target_modules;
  config.base_model_name_or_path = base_model;
  std::vector<NamedShape> shapes;
  stage.visit([&](const StateRef& state) {
    if (state.role == StateRole::parameter) {
      shapes.push_back({state.name, {state.view.dim(0), state.view.dim(1)}});
    }
  });
  PeftWriter writer(directory, config, shapes);
  stage.visit([&](const StateRef& state) {
    if (state.role != StateRole::parameter) return;
    write_tensor(ops, state.view, [&](std::span<const uint8_t> bytes) {
      std::vector<float> values(bytes.size() / sizeof(float));
      std::memcpy(values.data(), bytes.data(), bytes.size());
      writer.write(state.name, values);
    });
  });
  writer.commit();
}

void load_adapter(const Stage& stage, Ops& ops, const fs::path& adapter) {
  const PeftAdapter loaded = read_peft_adapter(adapter);
  std::map<std::string, const NamedArray*> arrays;
  for (const NamedArray& array : loaded.tensors) arrays[array.name] = &array;
  stage.visit([&](const StateRef& state) {
    if (state.role != StateRole::parameter) return;
    const auto found = arrays.find(state.name);
    if (found == arrays.end() ||
        found->second->shape != std::vector<int64_t>{state.view.dim(0), state.view.dim(1)}) {
      throw Error(
          ErrorKind::model,
          fmt::format("{}: {} is missing or of another shape", adapter.string(), state.name),
          "the adapter was made for another model");
    }
    const auto& values = found->second->values;
    read_tensor(ops,
                {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)},
                state.view);
    arrays.erase(found);
  });
  if (!arrays.empty()) {
    throw Error(
        ErrorKind::model,
        fmt::format("{}: the model has no place for {}", adapter.string(), arrays.begin()->first),
        "the adapter was made for another model");
  }
}

Recipe with_adapter_options(Recipe recipe) {
  if (recipe.adapter.empty()) return recipe;
  const PeftConfig config = read_peft_adapter(recipe.adapter).config;
  const std::string origin = recipe.adapter;
  recipe.learner = "lora";
  recipe.options.set("learner", "lora", origin);
  recipe.options.set("lora_rank", std::to_string(config.r), origin);
  recipe.options.set("lora_alpha", fmt::format("{}", config.lora_alpha), origin);
  recipe.options.set("lora_dropout", fmt::format("{}", config.lora_dropout), origin);
  recipe.options.set("use_rslora", config.use_rslora ? "true" : "false", origin);
  recipe.options.set("lora_target", fmt::format("{}", fmt::join(config.target_modules, ",")),
                     origin);
  return recipe;
}

}  // namespace jackscrew
