// Converts JSON to template values.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "text/jinja/value.h"

namespace jackscrew::jinja {

// Strings in it get `origin`; binary values are the digits of whole numbers that have no other
// place. Throws Error(data) for values nested too deep, lists that are too long, and whole numbers
// beyond 64 bits.
Value from_json(const nlohmann::ordered_json& json, Origin origin = kContent);

}  // namespace jackscrew::jinja
