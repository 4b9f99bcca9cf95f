// Python's operators on values. They throw Failure where Python raises.
#pragma once

#include "text/jinja/syntax.h"

namespace jackscrew::jinja {

Value apply(Unary::Operator op, const Value& operand);
Value apply(Binary::Operator op, const Value& left, const Value& right);
bool apply(Comparison::Operator op, const Value& left, const Value& right);

// Python's `item in container`.
bool contains(const Value& container, const Value& item);

}  // namespace jackscrew::jinja
