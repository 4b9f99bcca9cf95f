// Reads a recipe: a YAML file with one flat map of options.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/options.h"

namespace jackscrew {

// Whether an argument is the name of a recipe: it ends in .yaml or .yml.
bool is_recipe_name(std::string_view name);

// The file's `key: value` pairs in order, with "file:line" as origin. A value is a scalar or a list
// of scalars, that of a key such as rank_pattern also a map, of which each `a: b` is an item "a=b";
// a key without a value is skipped. Names and values are not checked here. Throws
// Error(usage) with file and line for anything else.
std::vector<Assignment> read_recipe_file(const fs::path& path);

// The pairs of a text in memory; `name` takes the place of the file's name in origins and messages.
std::vector<Assignment> parse_recipe_text(const std::string& text, std::string_view name);

// A key of a recipe with its value, or the error if the value is nested.
struct RecipeEntry {
  Assignment assignment;
  std::optional<Error> error;
};

// The keys that have a value, in order; nested values are only recorded as errors. Throws
// Error(usage) if the text is not a map.
std::vector<RecipeEntry> read_recipe_entries(const fs::path& path);

}  // namespace jackscrew
