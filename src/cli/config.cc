// jackscrew config: writes recipes to start from, checks a recipe, and prints a JSON schema for
// editors.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/recipes.h"
#include "recipe/foreign_recipe.h"
#include "recipe/recipe_file.h"
#include "recipe/recipe_text.h"
#include "session/place.h"
#include "train/run_exports.h"

namespace jackscrew {

namespace {

using nlohmann::ordered_json;

// The JSON value that a YAML reader would see: "true", "1e-5".
ordered_json json_value(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  if (const auto integer = parse_int(text)) return *integer;
  if (const auto number = parse_double(text)) return *number;
  return text;
}

// Words, each also as what a YAML reader may take it for: "6" and 6.
ordered_json words_schema(const std::vector<std::string>& words) {
  ordered_json values = ordered_json::array();
  for (const std::string& word : words) {
    values.push_back(word);
    if (ordered_json value = json_value(word); !value.is_string()) values.push_back(value);
  }
  return {{"enum", values}};
}

// Whatever a plain value may look like to a YAML reader: "a", 3, 0.5, true.
ordered_json plain_schema(const std::vector<std::string>& choices) {
  if (!choices.empty()) return words_schema(choices);
  return {{"type", {"string", "number", "boolean"}}};
}

ordered_json type_schema(const OptionSpec& spec) {
  const auto choices = split_words(spec.choices);
  ordered_json schema = ordered_json::object();
  switch (spec.type) {
    case OptionType::text:
      return plain_schema(choices);
    case OptionType::list: {
      // A plain value is a list of one, or items with commas between them.
      const ordered_json list = {{"type", "array"}, {"items", plain_schema(choices)}};
      return {{"anyOf", {plain_schema({}), list}}};
    }
    case OptionType::integer:
      schema["type"] = "integer";
      break;
    case OptionType::number:
      schema["type"] = "number";
      break;
    case OptionType::boolean:
      schema["type"] = "boolean";
      break;
    case OptionType::bytes:
      schema["type"] = "string";  // with its unit, or a word
      return schema;
  }
  if (std::isfinite(spec.min)) schema["minimum"] = json_value(fmt::format("{}", spec.min));
  if (std::isfinite(spec.max)) schema["maximum"] = json_value(fmt::format("{}", spec.max));
  ordered_json any = ordered_json::array({schema});
  // Readers of YAML 1.1 take 1e-5 for text.
  if (spec.type == OptionType::number) {
    any.push_back({{"type", "string"}, {"pattern", "^[0-9.]+[eE][-+]?[0-9]+$"}});
  }
  if (!choices.empty()) any.push_back(words_schema(choices));
  return any.size() == 1 ? schema : ordered_json{{"anyOf", any}};
}

void print_schema() {
  ordered_json properties = ordered_json::object();
  const OptionSet options = program_options();
  for (const OptionValue& option : options.values()) {
    if (!options.tables()[option.table].saved) continue;
    ordered_json property = type_schema(option.spec);
    const bool is_open = option.text.empty() && option.spec.type != OptionType::list;
    // The program writes such keys, too, with nothing behind them.
    if (is_open) property = {{"anyOf", {property, {{"type", "null"}}}}};
    property["description"] = option.spec.help;
    if (!is_open && option.spec.type != OptionType::list) {
      property["default"] = json_value(option.text);
    }
    properties[option.spec.name] = property;
    for (const std::string& alias : split_words(option.spec.aliases)) {
      property["description"] = fmt::format("the same as {}", option.spec.name);
      properties[alias] = property;
    }
  }
  const ordered_json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                               {"title", "Jackscrew recipe"},
                               {"type", "object"},
                               {"additionalProperties", false},
                               {"properties", properties}};
  fmt::print("{}\n", schema.dump(2));
}

// The recipe of recipes/ with this name; nullptr if there is none.
const EmbeddedText* find_recipe_text(std::string_view name) {
  const auto texts = recipe_texts();
  const auto found = std::ranges::find(texts, name, &EmbeddedText::name);
  return found == texts.end() ? nullptr : &*found;
}

// The recipe's text with run.yaml in its commands, where it has the file's path in the source tree.
std::string text_for_user(const EmbeddedText& recipe) {
  const std::string place = fmt::format("recipes/{}.yaml", recipe.name);
  std::string text = recipe.text;
  for (size_t at = 0; (at = text.find(place, at)) != std::string::npos;) {
    text.replace(at, place.size(), "run.yaml");
  }
  return text;
}

// Prints the annotated recipe of a method, or the one that recipes/ has under this name (int4);
// with `all`, every option that this method and product have, with the value that it has there.
int init(const std::string& name, bool all) {
  const EmbeddedText* text = find_recipe_text(name);
  const bool is_preset = std::ranges::find(presets(), name, &Preset::name) != presets().end();
  OptionSet options = program_options();
  if (text == nullptr || is_preset) {
    options.set("method", name, "config init");
  } else {
    for (const Assignment& line : parse_recipe_text(text->text, name)) options.set(line);
  }
  const Recipe recipe = resolve_recipe(options, method_tables());
  if (all) {
    // What nobody has set stays open, so that another method in the edited file brings its own.
    fmt::print("# Run with: jackscrew train FILE.yaml\n{}", given_yaml(recipe));
    return 0;
  }
  if (text == nullptr) fail(ErrorKind::generic, "there is no recipe of method {}", name);
  fmt::print(
      "{}# Every option that this method and product have: jackscrew config init {} --all\n"
      "# Those of the others: jackscrew help train\n",
      text_for_user(*text), name);
  return 0;
}

// Lists the keys of another program's recipe and what they are here.
void print_report(const RecipeReport& report) {
  fmt::print("understood\n");
  for (const auto& [key, option] : report.known) {
    fmt::print("  {:<30} {}\n", one_line(key), key == option ? "" : option);
  }
  fmt::print("not understood\n");
  for (const auto& [key, origin, hint] : report.unknown) {
    fmt::print("  {:<30} {}\n", one_line(key),
               hint.empty() ? "there is no such option" : one_line(hint));
  }
}

// Refuses what contradicts itself whatever the command, the model and the machine are.
void check_run(const Recipe& recipe) {
  check_method(recipe);
  check_lanes(recipe, std::max<int64_t>(1, recipe.data_parallel));
  check_export_storages(recipe);
}

// A recipe that sets nothing is valid, since it may be read beside other settings; alone it is a
// mistake, such as the output of a command that failed.
int validate(Arguments arguments) {
  const auto is_recipe = [](const std::string& argument) { return is_recipe_name(argument); };
  const auto file = std::find_if(arguments.begin(), arguments.end(), is_recipe);
  if (file != arguments.end()) {
    const RecipeReport report = report_recipe(read_recipe_entries(*file), program_options());
    if (report.is_foreign) {
      print_report(report);
      throw Error(ErrorKind::usage, report.summary(*file), report.program_hint());
    }
  }
  return with_recipe(arguments, 0, "config validate", [&](const Recipe& recipe) {
    warn_of_unused(recipe, "config validate", {"overwrite", "json", "fit", "ranks", "verbose"});
    if (file == arguments.end()) {
      throw Error(ErrorKind::usage, "config validate needs a recipe",
                  "jackscrew config validate FILE.yaml");
    }
    if (read_recipe_file(*file).empty()) {
      throw Error(ErrorKind::usage, fmt::format("{} sets no option", *file),
                  "a recipe has lines such as `model: path/to/model`; `jackscrew config init lora` "
                  "writes one");
    }
    check_run(recipe);
    fmt::print("{}: valid\n", one_line(*file));
    return 0;
  });
}

}  // namespace

int run_config(Arguments arguments) {
  const std::string action = arguments.empty() ? std::string() : arguments[0];
  if (action == "init") {
    std::vector<std::string> methods(arguments.begin() + 1, arguments.end());
    const bool all = std::erase(methods, "--all") > 0;
    if (methods.size() == 1) return init(methods[0], all);
  }
  if (action == "validate" && arguments.size() >= 2) {
    return validate(arguments.subspan(1));
  }
  if (action == "schema" && arguments.size() == 1) {
    print_schema();
    return 0;
  }
  throw Error(ErrorKind::usage,
              "config takes `init METHOD [--all]`, `validate FILE.yaml` or `schema`",
              "jackscrew help config shows examples");
}

}  // namespace jackscrew
