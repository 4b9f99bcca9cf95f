// Converts JSON to template values.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "text/jinja/value.h"

namespace jackscrew::jinja {

// Strings in it get `origin`. Throws Error(data) for values nested too deep and for numbers beyond
// 64 bits.
Value from_json(const nlohmann::ordered_json& json, Origin origin = kContent);

}  // namespace jackscrew::jinja
