#include "recipe/recipe_text.h"

#include <gtest/gtest.h>

#include "recipe/recipe_file.h"

namespace jackscrew {
namespace {

OptionSet read_back(const std::string& text) {
  OptionSet options = run_options(method_tables());
  for (const Assignment& assignment : parse_recipe_text(text, "text")) options.set(assignment);
  return options;
}

void expect_same(const Recipe& recipe, const Recipe& again) {
  for (const OptionValue& option : recipe.options.values()) {
    const OptionValue& other = again.options.at(option.spec.name, "test");
    EXPECT_EQ(other.text, option.text) << option.spec.name;
    EXPECT_EQ(other.explicitly_set, option.explicitly_set) << option.spec.name;
  }
}

TEST(GivenYaml, ReadsBackAsTheMethodItIsOf) {
  for (const Preset& preset : presets()) {
    SCOPED_TRACE(preset.name);
    OptionSet options = run_options(method_tables());
    options.set("method", preset.name, "test");
    const Recipe recipe = resolve_recipe(options, method_tables());
    const std::string text = given_yaml(recipe);
    expect_same(recipe, resolve_recipe(read_back(text), method_tables()));
    // All values are there to be seen, and the method's are those that the run has.
    for (const Assignment& setting : split_settings(preset.settings, "test")) {
      EXPECT_NE(text.find("\n# " + setting.name + ": " + setting.text + " "), std::string::npos)
          << setting.name;
    }
  }
}

TEST(GivenYaml, KeepsWhatWasGivenEvenWhereItIsTheDefault) {
  OptionSet options = run_options(method_tables());
  for (const auto& [name, value] : {std::pair{"sequence_len", "1024"},
                                    {"data", "a b.jsonl,c"},
                                    {"output", "m.gguf"},
                                    {"prompt", ""}}) {
    options.set(name, value, kCommandLine);
  }
  const Recipe recipe = resolve_recipe(options, method_tables());
  const std::string text = given_yaml(recipe);
  expect_same(recipe, resolve_recipe(read_back(text), method_tables()));
  EXPECT_NE(text.find("\nsequence_len: 1024 "), std::string::npos) << text;
  EXPECT_NE(text.find("\noutput: m.gguf "), std::string::npos) << text;
  EXPECT_NE(text.find("\nprompt: \"\" "), std::string::npos) << text;
}

TEST(OptionSet, ARecipeOfAllOptionsAsksForNoDefault) {
  OptionSet options = run_options(method_tables());
  EXPECT_FALSE(options.asks_for("bits"));
  options.set("bits", "4.0", "run.yaml:3");
  EXPECT_FALSE(options.asks_for("bits"));
  options.set("bits", "3", "run.yaml:3");
  EXPECT_TRUE(options.asks_for("bits"));
  options.set("bits", "4", kCommandLine);
  EXPECT_TRUE(options.asks_for("bits"));
}

TEST(OptionSet, ADefaultIsNoChangeHoweverItIsWritten) {
  OptionSet options = run_options(method_tables());
  for (const auto& [name, value] : {std::pair{"galore_scale", "0.250"},
                                    {"overlap_rotation", "off"},
                                    {"steps_per_rotation", "auto"},
                                    {"rotation_order", "permutation"}}) {
    EXPECT_FALSE(options.is_changed(name)) << name;
    options.set(name, value, kCommandLine);
    EXPECT_FALSE(options.is_changed(name)) << name;
  }
  options.set("galore_scale", "0.26", kCommandLine);
  EXPECT_TRUE(options.is_changed("galore_scale"));
  options.imply("churn", "0.3", "a method");
  EXPECT_FALSE(options.is_changed("churn"));
}

}  // namespace
}  // namespace jackscrew
