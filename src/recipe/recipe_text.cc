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
    if (is_setting && !is_given(recipe.options.at(name, "recipe"))) {
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
