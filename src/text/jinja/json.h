// JSON as values of templates.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "text/jinja/value.h"

namespace jackscrew::jinja {

// Texts in it get `origin`. Throws Error(data) for what lies too deep and numbers beyond 64 bits.
Value from_json(const nlohmann::ordered_json& json, Origin origin = kContent);

}  // namespace jackscrew::jinja
