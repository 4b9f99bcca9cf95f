#include "session/adapter.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <vector>

#include "formats/peft.h"
#include "formats/tensor_io.h"

namespace jackscrew {

namespace {

PeftConfig peft_config(const AdapterDescription& adapter, const std::string& base_model) {
  PeftConfig config;
  config.r = adapter.rank;
  config.lora_alpha = adapter.alpha;
  config.lora_dropout = adapter.dropout;
  config.use_rslora = adapter.use_rslora;
  config.target_modules = adapter.target_modules;
  config.base_model_name_or_path = base_model;
  return config;
}

std::vector<NamedShape> parameter_shapes(const Stage& stage) {
  std::vector<NamedShape> shapes;
  stage.visit([&](const StateRef& state) {
    if (state.role == StateRole::parameter) {
      shapes.push_back({state.name, {state.view.dim(0), state.view.dim(1)}});
    }
  });
  return shapes;
}

}  // namespace

int64_t adapter_bytes(const Stage& stage, const AdapterDescription& adapter,
                      const std::string& base_model) {
  return peft_bytes(peft_config(adapter, base_model), parameter_shapes(stage));
}

void export_adapter(const Stage& stage, Ops& ops, const AdapterDescription& adapter,
                    const std::string& base_model, const fs::path& directory) {
  PeftWriter writer(directory, peft_config(adapter, base_model), parameter_shapes(stage));
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
          "the adapter was made for another model, or for some of its layers only");
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
  const std::string& origin = recipe.adapter;
  if (recipe.learner != "lora") {
    throw Error(ErrorKind::usage,
                fmt::format("an adapter is given, but the learner is {}", recipe.learner),
                "an adapter learns by method=lora; leave it out to train the model");
  }
  const PeftAdapter adapter = read_peft_adapter(recipe.adapter);
  for (const NamedArray& array : adapter.tensors) {
    if (array.name.starts_with("model.layers.")) continue;
    throw Error(ErrorKind::model, fmt::format("{}: {} has no place", origin, array.name),
                "adapters of the matrices of blocks are supported, those of lm_head and "
                "embed_tokens are not");
  }
  const PeftConfig& config = adapter.config;
  OptionSet& options = recipe.options;
  const auto take = [&](const char* name, const std::string& value, const auto& differs) {
    if (options.was_set(name) && differs()) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} is {}, but the adapter {} has {}", options.origin(name), name,
                              options.text(name), origin, value),
                  fmt::format("leave {} out: it is the adapter's", name));
    }
    options.set(name, value, origin);
  };
  const auto other_targets = [&] {
    std::vector<std::string> given = options.list("lora_target");
    const auto is_all = [](const std::string& name) {
      return name == "all-linear" || name == "all";
    };
    if (std::any_of(given.begin(), given.end(), is_all)) return false;
    std::vector<std::string> theirs = config.target_modules;
    std::sort(given.begin(), given.end());
    std::sort(theirs.begin(), theirs.end());
    return given != theirs;
  };
  take("lora_rank", std::to_string(config.r),
       [&] { return options.integer("lora_rank") != config.r; });
  take("lora_alpha", fmt::format("{}", config.lora_alpha), [&] {
    return !options.is_word("lora_alpha") && options.number("lora_alpha") != config.lora_alpha;
  });
  take("use_rslora", config.use_rslora ? "true" : "false",
       [&] { return options.boolean("use_rslora") != config.use_rslora; });
  take("lora_target", fmt::format("{}", fmt::join(config.target_modules, ",")), other_targets);
  // Of training alone: the recipe's word goes before the adapter's.
  options.imply("lora_dropout", fmt::format("{}", config.lora_dropout), origin);
  return recipe;
}

}  // namespace jackscrew
