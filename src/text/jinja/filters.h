// The tables of filters, one of those on scalars and texts and one of those on what has items.
#pragma once

#include <span>

#include "text/jinja/tables.h"

namespace jackscrew::jinja {

std::span<const Filter> scalar_filters();
std::span<const Filter> sequence_filters();

}  // namespace jackscrew::jinja
