// The tables of filters: one for scalars and texts, one for values with items.
#pragma once

#include <span>

#include "text/jinja/tables.h"

namespace jackscrew::jinja {

std::span<const Filter> scalar_filters();
std::span<const Filter> sequence_filters();

}  // namespace jackscrew::jinja
