// Tests: the words that may follow `is`, and that select, reject and others take.
#include <algorithm>

#include "text/jinja/failure.h"
#include "text/jinja/operators.h"
#include "text/jinja/tables.h"

namespace jackscrew::jinja {

namespace {

bool remainder_is(const Value& value, const Value& divisor, int64_t expected) {
  return equal(apply(Binary::Operator::modulo, value, divisor), expected);
}

// Python's islower() and isupper(): there is a letter, and all letters have that case.
bool letters_are(const Value& value, bool lower) {
  const Text text = to_text(value);
  for (size_t i = 0; i < text.size(); i += character_size(text.view(), i)) {
    const uint32_t c = code_point(text.view(), i);
    if (c >= 0x80 && !is_caseless(c)) fail("the case of a text beyond ASCII");
  }
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto is_upper = [](char c) { return c >= 'A' && c <= 'Z'; };
  const std::string_view view = text.view();
  const bool any_lower = std::any_of(view.begin(), view.end(), is_lower);
  const bool any_upper = std::any_of(view.begin(), view.end(), is_upper);
  return lower ? any_lower && !any_upper : any_upper && !any_lower;
}

bool is_sequence(const Value& value) {
  const Sequence* sequence = value.as_sequence();
  return value.is_undefined() || value.as_text() != nullptr || value.as_dict() != nullptr ||
         (sequence != nullptr && sequence->kind != SequenceKind::dict_view);
}

bool is_iterable(const Value& value) {
  return is_sequence(value) || value.as_sequence() != nullptr || value.as_generator() != nullptr;
}

template <Comparison::Operator op>
bool compares(const Value& value, const BoundArguments& arguments) {
  return apply(op, value, arguments[0]);
}

using Compare = Comparison::Operator;

constexpr Test kTests[] = {
    {"defined", "", [](const Value& v, const BoundArguments&) { return !v.is_undefined(); }},
    {"undefined", "", [](const Value& v, const BoundArguments&) { return v.is_undefined(); }},
    {"none", "", [](const Value& v, const BoundArguments&) { return v.is_none(); }},
    {"boolean", "", [](const Value& v, const BoundArguments&) { return v.as_bool() != nullptr; }},
    {"true", "", [](const Value& v, const BoundArguments&) { return v.as_bool() && *v.as_bool(); }},
    {"false", "",
     [](const Value& v, const BoundArguments&) { return v.as_bool() && !*v.as_bool(); }},
    {"integer", "", [](const Value& v, const BoundArguments&) { return v.as_int() != nullptr; }},
    {"float", "", [](const Value& v, const BoundArguments&) { return v.as_float() != nullptr; }},
    {"number", "", [](const Value& v, const BoundArguments&) { return v.is_number(); }},
    {"string", "", [](const Value& v, const BoundArguments&) { return v.as_text() != nullptr; }},
    {"mapping", "", [](const Value& v, const BoundArguments&) { return v.as_dict() != nullptr; }},
    {"sequence", "", [](const Value& v, const BoundArguments&) { return is_sequence(v); }},
    {"iterable", "", [](const Value& v, const BoundArguments&) { return is_iterable(v); }},
    {"callable", "", [](const Value& v, const BoundArguments&) { return v.is_callable(); }},
    {"odd", "",
     [](const Value& v, const BoundArguments&) { return remainder_is(v, int64_t{2}, 1); }},
    {"even", "",
     [](const Value& v, const BoundArguments&) { return remainder_is(v, int64_t{2}, 0); }},
    {"divisibleby", "num",
     [](const Value& v, const BoundArguments& a) { return remainder_is(v, a[0], 0); }},
    {"lower", "", [](const Value& v, const BoundArguments&) { return letters_are(v, true); }},
    {"upper", "", [](const Value& v, const BoundArguments&) { return letters_are(v, false); }},
    {"sameas", "other", [](const Value& v, const BoundArguments& a) { return v.same_as(a[0]); }},
    {"in", "seq", [](const Value& v, const BoundArguments& a) { return contains(a[0], v); }},
    {"==", "b", compares<Compare::equal>},
    {"eq", "b", compares<Compare::equal>},
    {"equalto", "b", compares<Compare::equal>},
    {"!=", "b", compares<Compare::not_equal>},
    {"ne", "b", compares<Compare::not_equal>},
    {">", "b", compares<Compare::greater>},
    {"gt", "b", compares<Compare::greater>},
    {"greaterthan", "b", compares<Compare::greater>},
    {">=", "b", compares<Compare::greater_equal>},
    {"ge", "b", compares<Compare::greater_equal>},
    {"<", "b", compares<Compare::less>},
    {"lt", "b", compares<Compare::less>},
    {"lessthan", "b", compares<Compare::less>},
    {"<=", "b", compares<Compare::less_equal>},
    {"le", "b", compares<Compare::less_equal>},
};

}  // namespace

const Test* find_test(std::string_view name) {
  const auto found = std::find_if(std::begin(kTests), std::end(kTests),
                                  [&](const Test& test) { return test.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

std::string unknown_test(std::string_view name) {
  return fmt::format("the test \"{}\" is not supported", name);
}

}  // namespace jackscrew::jinja
