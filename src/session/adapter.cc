#include "session/adapter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/checked.h"
#include "base/list_text.h"
#include "base/text.h"
#include "formats/peft.h"
#include "formats/shape.h"
#include "formats/state_io.h"
#include "model/weights.h"
#include "report/progress.h"

namespace jackscrew {

namespace {

// Whether a tensor of an adapter stands beside a weight.
bool is_beside(const PeftTensor& tensor, const WeightSpec& weight) {
  return tensor.name.starts_with(weight.path() + ".");
}

// Prefixes such as "model.layers.3.mlp.up_proj." of the weights that other stages hold.
std::set<std::string> modules_of_other_stages(const Stage& stage) {
  std::set<std::string> names;
  for (const WeightSpec& weight : weights_of(stage.config(), StageSpec::whole(stage.config()))) {
    names.insert(weight.path() + ".");
  }
  for (const auto& parameter : stage.parameters()) {
    names.erase(parameter->weight->spec().path() + ".");
  }
  return names;
}

std::vector<int64_t> shape_of(const Tensor& tensor) {
  std::vector<int64_t> shape;
  for (int i = 0; i < tensor.rank(); ++i) shape.push_back(tensor.dim(i));
  return shape;
}

// Why a tensor of an adapter has no place in any model.
std::string hint_of_place(const std::string& tensor) {
  if (tensor.find("_orig_mod.") != std::string::npos) {
    return "it was saved of a model under torch.compile: save it of the model itself";
  }
  if (tensor.starts_with("layers.")) {
    return "it was made for a model without its head, such as AutoModel's: make it for "
           "AutoModelForCausalLM's";
  }
  if (const size_t at = tensor.find(".model.layers."); at != std::string::npos) {
    return fmt::format("its names have a further prefix, {0}: rename its tensors, {1}{0}* to {1}*",
                       tensor.substr(0, at + 1), kAdapterPrefix);
  }
  return "adapters of the matrices of blocks are supported, those of lm_head and embed_tokens are "
         "not; PEFT's merge_and_unload() makes a model of such an adapter of an untied model";
}

// Copies an adapter's values to a contiguous tensor of f32 of the same size.
void fill(Ops& ops, const PeftTensor& from, const fs::path& adapter, const Tensor& to) {
  fill_tensor(ops, to, [&](int64_t begin, std::span<uint8_t> chunk) {
    constexpr int64_t kBytes = sizeof(float);
    const std::vector<float> values =
        from.values(begin / kBytes, (begin + std::ssize(chunk)) / kBytes);
    require_finite(values, from, adapter);
    std::memcpy(chunk.data(), values.data(), chunk.size());
  });
}

// Whether the recipe's value of an option equals the adapter's, or leaves the choice to it.
bool agrees(const OptionValue& given, const OptionValue& adapters, const AdapterOption& option,
            const OptionSet& recipe) {
  const auto is_other_word = [&](const std::string& word) {
    return std::find(option.accepted_instead.begin(), option.accepted_instead.end(), word) !=
           option.accepted_instead.end();
  };
  if (option.accepts_any || is_other_word(given.text)) return true;
  if (option.accepts && option.accepts(given.text, recipe)) return true;
  if (given.spec.type != OptionType::list) return same_value(given, adapters);
  return std::any_of(given.items.begin(), given.items.end(), is_other_word) ||
         std::is_permutation(given.items.begin(), given.items.end(), adapters.items.begin(),
                             adapters.items.end());
}

// Sets an option to the adapter's value.
void take(OptionSet& options, const AdapterOption& option, const std::string& origin) {
  const char* name = option.name.c_str();
  if (option.training_only) return options.imply(name, option.value, origin);
  const bool was_set = options.was_set(name);
  const OptionValue given = options.at(name, origin);
  Assignment theirs{option.name, option.value, origin, {}};
  if (given.spec.type == OptionType::list) theirs.items = option.items;
  options.set(theirs);
  const OptionValue& taken = options.at(name, origin);
  if (!was_set || agrees(given, taken, option, options)) return;
  const auto shown = [](const std::string& text) { return text.empty() ? "nothing" : text; };
  throw Error(ErrorKind::usage,
              fmt::format("{}: {} is {}, but the adapter {} has {}", given.origin, name,
                          shown(given.text), origin, shown(taken.text)),
              fmt::format("leave {} out: it is the adapter's", name));
}

// A tensor of an adapter's directory.
struct AdapterTensor {
  NamedShape file;                // its name and shape there
  StateRef learned;               // its values, or the first part of them
  std::optional<StateRef> fixed;  // constants that follow, joined along fixed->joins_along
};

std::vector<NamedShape> shapes_of(const std::vector<AdapterTensor>& tensors) {
  std::vector<NamedShape> shapes;
  for (const AdapterTensor& tensor : tensors) shapes.push_back(tensor.file);
  return shapes;
}

std::vector<AdapterTensor> tensors_of(const StateSource& states, const nlohmann::json& adapter) {
  std::vector<StateRef> parameters;
  std::map<std::string, StateRef> constants;  // by the parameter that they join
  states([&](const StateRef& state) {
    if (state.role == StateRole::parameter) parameters.push_back(state);
    if (state.role == StateRole::constant) constants.emplace(state.joins, state);
  });
  std::vector<AdapterTensor> tensors;
  for (const StateRef& state : parameters) {
    AdapterTensor tensor{{{}, shape_of(state.view)}, state, std::nullopt};
    if (const auto constant = constants.find(state.name); constant != constants.end()) {
      tensor.fixed = constant->second;
      const int along = tensor.fixed->joins_along;
      int64_t& size = tensor.file.shape[static_cast<size_t>(along)];
      size = checked_add(size, tensor.fixed->view.dim(along));
    }
    for (const std::string& name : stored_names(adapter, state.name)) {
      tensor.file.name = name;
      tensors.push_back(tensor);
    }
  }
  return tensors;
}

// Calls sink(values) with the values of a state in order, some at a time.
template <class Sink>
void read_values(Ops& ops, const StateRef& state, const Sink& sink) {
  write_state(ops, state, [&](std::span<const uint8_t> bytes) {
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    sink(std::span<const float>(values));
  });
}

// The values of two matrices joined along their columns, row-major.
std::vector<float> side_by_side(Ops& ops, const StateRef& left, const StateRef& right) {
  const auto rows = static_cast<size_t>(left.view.rows());
  std::vector<float> both(static_cast<size_t>(left.view.size() + right.view.size()));
  const size_t width = both.size() / rows;
  size_t first = 0;  // the column at which a matrix begins
  for (const StateRef* state : {&left, &right}) {
    const auto cols = static_cast<size_t>(state->view.cols());
    size_t at = 0;
    read_values(ops, *state, [&](std::span<const float> values) {
      for (const float value : values) {
        both[at / cols * width + first + at % cols] = value;
        ++at;
      }
    });
    first += cols;
  }
  return both;
}

}  // namespace

int64_t adapter_bytes(const StateSource& states, const nlohmann::json& adapter,
                      const std::string& base_model) {
  return peft_bytes(adapter, base_model, shapes_of(tensors_of(states, adapter)));
}

void export_adapter(const StateSource& states, Ops& ops, const nlohmann::json& adapter,
                    const std::string& base_model, const fs::path& directory,
                    const std::function<void(const fs::path& path)>& add) {
  const std::vector<AdapterTensor> tensors = tensors_of(states, adapter);
  PeftWriter writer(directory, adapter, base_model, shapes_of(tensors));
  for (const AdapterTensor& tensor : tensors) {
    const auto write = [&](std::span<const float> values) {
      writer.write(tensor.file.name, values);
    };
    if (tensor.fixed && tensor.fixed->joins_along == 1) {
      write(side_by_side(ops, tensor.learned, *tensor.fixed));
      continue;
    }
    read_values(ops, tensor.learned, write);
    if (tensor.fixed) read_values(ops, *tensor.fixed, write);
  }
  if (add) add(writer.path());
  writer.commit();
}

void require_tying(const PeftAdapter& adapter, bool tied, const fs::path& directory) {
  if (!adapter.unties_embedding || !tied) return;
  throw Error(ErrorKind::model,
              fmt::format("{}: its embedding or head learned by itself, but in this model both "
                          "are one",
                          directory.string()),
              "only what PEFT trained over such a model with ensure_weight_tying=True fits it");
}

PeftAdapter read_adapter_over(const fs::path& directory, bool tied) {
  PeftAdapter adapter = read_peft_adapter(directory);
  require_tying(adapter, tied, directory);
  if (!tied && adapter.repeated_head) {
    adapter.tensors.insert(adapter.tensors.begin(), *adapter.repeated_head);  // first by its name
  }
  return adapter;
}

Recipe with_head_of_adapter(Recipe recipe, bool tied) {
  // The adapter is read only where that may matter: a session is planned many times.
  if (tied || recipe.adapter.empty() || recipe.learner != "lora" ||
      recipe.options.list("modules_to_save") != std::vector<std::string>{"embed_tokens"} ||
      !read_peft_adapter(recipe.adapter).repeated_head) {
    return recipe;
  }
  recipe.options.set(
      {"modules_to_save", "", recipe.adapter, std::vector<std::string>{"embed_tokens", "lm_head"}});
  return recipe;
}

void fail_without(const std::string& tensor, const fs::path& directory) {
  throw Error(ErrorKind::model, fmt::format("{}: {} is missing", directory.string(), tensor),
              "the adapter was made for another model, or for some of its layers only");
}

void require_shape(const PeftTensor& tensor, const std::vector<int64_t>& shape,
                   const fs::path& directory) {
  if (tensor.shape == shape) return;
  const bool is_of_tokens =
      tensor.name == "model.embed_tokens.weight" || tensor.name == "lm_head.weight";
  const bool is_resized = is_of_tokens && tensor.shape.back() == shape.back();
  throw Error(ErrorKind::model,
              fmt::format("{}: {} has shape {}, the model asks for {}", directory.string(),
                          tensor.name, shape_text(tensor.shape), shape_text(shape)),
              is_resized
                  ? "the vocabulary was resized for the adapter: resize the model's alike and "
                    "save it, or make a model of both with PEFT's merge_and_unload()"
                  : kOtherModel);
}

void fail_of_place(const std::string& tensor, const fs::path& directory) {
  throw Error(ErrorKind::model,
              fmt::format("{}: the model has no place for {}", directory.string(), tensor),
              kOtherModel);
}

void require_places(const PeftAdapter& adapter, std::span<const WeightSpec> weights,
                    const fs::path& directory) {
  for (const PeftTensor& tensor : adapter.tensors) {
    const auto is_here = [&](const WeightSpec& weight) { return is_beside(tensor, weight); };
    // What has no module in its name is a soft prompt.
    const bool has_module = tensor.name.find('.') != std::string::npos;
    if (has_module && std::ranges::none_of(weights, is_here)) fail_of_place(tensor.name, directory);
  }
}

void require_trainable(const Recipe& recipe) {
  if (recipe.adapter.empty()) return;
  const PeftAdapter adapter = read_peft_adapter(recipe.adapter);
  if (adapter.trains_in_part.empty()) return;
  throw Error(
      ErrorKind::model,
      fmt::format("{}: {}: PEFT trains only a part of such an adapter, which is not supported",
                  recipe.adapter, adapter.trains_in_part),
      "it can be used and merged; merge it, and train a new one over the result");
}

void require_finite(std::span<const float> values, const PeftTensor& tensor,
                    const fs::path& directory) {
  if (std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) return;
  throw Error(ErrorKind::non_finite,
              fmt::format("{}: {} has values that are not finite", directory.string(), tensor.name),
              "its training went wrong: a model with it would answer nothing");
}

void load_adapter(const Stage& stage, Ops& ops, const fs::path& adapter) {
  const PeftAdapter loaded = read_adapter_over(adapter, stage.config().tie_word_embeddings);
  std::map<std::string, const PeftTensor*> tensors;
  for (const PeftTensor& tensor : loaded.tensors) tensors[tensor.name] = &tensor;
  stage.visit([&](const StateRef& state) {
    if (state.role != StateRole::parameter) return;
    const auto found = tensors.find(state.name);
    if (found == tensors.end()) fail_without(state.name, adapter);
    require_shape(*found->second, shape_of(state.view), adapter);
    fill(ops, *found->second, adapter, state.view);
    tensors.erase(found);
  });
  const std::set<std::string> others = modules_of_other_stages(stage);
  std::erase_if(tensors, [&](const auto& tensor) {
    // What has no module in its name, a soft prompt, stands beside the embedding.
    const bool has_module = tensor.first.find('.') != std::string::npos;
    if (!has_module) return !stage.spec().embedding;
    return std::any_of(others.begin(), others.end(),
                       [&](const std::string& module) { return tensor.first.starts_with(module); });
  });
  if (!tensors.empty()) fail_of_place(tensors.begin()->first, adapter);
}

void warn_of_adapter(const Stage& stage, const fs::path& adapter) {
  const PeftAdapter read = read_peft_adapter(adapter);
  const std::string contradiction = read.contradiction(stage.config().num_hidden_layers);
  if (!contradiction.empty()) warn(contradiction);
  if (read.base_storage.empty()) return;
  for (const auto& parameter : stage.parameters()) {
    const Weight& weight = *parameter->weight;
    const auto is_here = [&](const PeftTensor& tensor) { return is_beside(tensor, weight.spec()); };
    if (!weight.spec().is_block_matrix() || weight.format().name() == read.base_storage ||
        std::ranges::none_of(read.tensors, is_here)) {
      continue;
    }
    return warn(
        fmt::format("{0}: its factors make up for what storage={1} takes from the weights, which "
                    "are stored as {2}: set storage={1}",
                    adapter.string(), read.base_storage, weight.format().name()));
  }
}

Recipe with_adapter_options(Recipe recipe) {
  if (recipe.adapter.empty()) return recipe;
  if (recipe.adapters.size() > 1) {
    const std::string of_comma = hint_of_comma(recipe.adapters);
    throw Error(
        ErrorKind::usage,
        fmt::format("{} are given, where one can stand beside the model",
                    counted(std::ssize(recipe.adapters), "adapter")),
        of_comma.empty()
            ? "jackscrew merge model=MODEL adapter=A,B output_dir=DIR makes one model of them"
            : of_comma);
  }
  const std::string origin = recipe.adapter;
  const PeftAdapter adapter = read_peft_adapter(origin);
  if (recipe.learner != adapter.learner) {
    recipe = with_method(std::move(recipe), adapter.learner, origin);
  }
  if (recipe.learner != adapter.learner) {
    throw Error(
        ErrorKind::usage, fmt::format("an adapter is given, but the learner is {}", recipe.learner),
        fmt::format("it learns by method={}; leave it out to train the model", adapter.learner));
  }
  if (!adapter.unplaceable_tensor.empty()) {
    throw Error(ErrorKind::model,
                fmt::format("{}: {} has no place", origin, adapter.unplaceable_tensor),
                hint_of_place(adapter.unplaceable_tensor));
  }
  refuse_other_learners(recipe.options);
  for (const AdapterOption& option : adapter.options) take(recipe.options, option, origin);
  return recipe;
}

Recipe without_training(Recipe recipe) {
  if (recipe.adapter.empty()) recipe.learner = "frozen";
  return recipe;
}

Recipe without_adapters(Recipe recipe) {
  recipe.adapter.clear();
  recipe.adapters.clear();
  recipe.adapter_weights.clear();
  return recipe;
}

}  // namespace jackscrew
