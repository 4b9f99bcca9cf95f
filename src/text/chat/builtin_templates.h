// Chat templates that a recipe may name in place of the model's own.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace jackscrew {

// The Jinja source; nullopt where there is none of that name.
std::optional<std::string_view> builtin_template(std::string_view name);

std::vector<std::string> builtin_template_names();

}  // namespace jackscrew
