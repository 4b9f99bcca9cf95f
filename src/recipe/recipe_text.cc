#include "recipe/recipe_text.h"

#include <fmt/format.h>

#include "base/text.h"

namespace jackscrew {

namespace {

// Whether somebody gave the value, and not a method or nobody.
bool is_given(const OptionValue& option) {
  return option.explicitly_set && !comes_with_method(option);
}

}  // namespace

std::string given_yaml(const Recipe& recipe) {
  std::string out = "# A line that begins with # is not set: remove the # to keep its value.\n\n";
  std::string text = recipe.to_yaml();
  text.pop_back();  // the last line break
  for (std::string line : split(text, '\n')) {
    const std::string name = line.substr(0, line.find(':'));
    const bool is_setting = !line.empty() && line.front() != '#';
    const OptionValue* option = is_setting ? &recipe.options.at(name, "recipe") : nullptr;
    if (option != nullptr && is_given(*option)) {
      // Without a value it would read back as not given.
      const bool is_empty = option->spec.type != OptionType::list && option->text.empty();
      if (is_empty) line.replace(name.size() + 2, 2, "\"\"");
    } else if (is_setting) {
      // The help stays where it is in lines that are set.
      constexpr size_t kPadding = 36;
      if (line.compare(kPadding, 2, "  ") == 0) line.erase(kPadding, 2);
      line.insert(0, "# ");
    }
    out += line + "\n";
  }
  return out;
}

}  // namespace jackscrew
