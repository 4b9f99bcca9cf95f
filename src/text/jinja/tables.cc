#include "text/jinja/tables.h"

#include <algorithm>

#include "text/jinja/failure.h"
#include "text/jinja/runtime.h"

namespace jackscrew::jinja {

BoundArguments::BoundArguments(std::string_view what, std::string_view parameters,
                               Arguments arguments)
    : what_(what) {
  bool optional = false;
  size_t next = 0;  // next positional argument
  while (!parameters.empty()) {
    const std::string_view name = parameters.substr(0, parameters.find(' '));
    parameters.remove_prefix(std::min(name.size() + 1, parameters.size()));
    if (name == "?") {
      optional = true;
      continue;
    }
    std::optional<Value>& value = values_.emplace_back();
    if (next < arguments.positional.size()) value = std::move(arguments.positional[next++]);
    if (auto named = take_named(arguments, name)) {
      if (value) fault("{}: two values for \"{}\"", what, name);
      value = std::move(named);
    }
    if (!value && !optional) fault("{}: \"{}\" is missing", what, name);
  }
  if (next < arguments.positional.size()) fault("{}: too many arguments", what);
  if (!arguments.named.empty()) {
    fault("{}: there is no parameter \"{}\"", what, arguments.named.front().first);
  }
}

int64_t BoundArguments::integer(size_t parameter, int64_t otherwise) const {
  if (!has(parameter)) return otherwise;
  const auto integer = values_[parameter]->defined().as_integer();
  if (!integer) {
    fail("{}: a {} where a number is expected", what_, values_[parameter]->type_name());
  }
  return *integer;
}

bool BoundArguments::flag(size_t parameter, bool otherwise) const {
  return has(parameter) ? values_[parameter]->truth() : otherwise;
}

const Text& BoundArguments::text(size_t parameter) const {
  const Text* text = values_[parameter]->defined().as_text();
  if (text == nullptr) {
    fail("{}: a {} where a text is expected", what_, values_[parameter]->type_name());
  }
  return *text;
}

Value call_filter(Runtime& runtime, const Filter& filter, const Value& subject,
                  Arguments arguments) {
  runtime.count_steps(1);
  const auto result = [&] {
    if (filter.apply_any != nullptr) return filter.apply_any(runtime, subject, arguments);
    const std::string what = fmt::format("the filter \"{}\"", filter.name);
    return filter.apply(runtime, subject,
                        BoundArguments(what, filter.parameters, std::move(arguments)));
  };
  Value value = result();
  runtime.count_value(value, true);
  return value;
}

bool call_test(const Test& test, const Value& subject, Arguments arguments) {
  const std::string what = fmt::format("the test \"{}\"", test.name);
  return test.holds(subject, BoundArguments(what, test.parameters, std::move(arguments)));
}

}  // namespace jackscrew::jinja
