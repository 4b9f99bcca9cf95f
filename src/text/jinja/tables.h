// Everything that templates can name: filters, tests, methods and functions, and how they are
// called.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace jackscrew::jinja {

// The arguments of one call, matched with the function's parameters.
class BoundArguments {
 public:
  // `parameters` are names separated by spaces, optional after a '?': "old new ? count". Throws
  // Failure where the arguments do not match; `what` is for the message.
  BoundArguments(std::string_view what, std::string_view parameters, Arguments arguments);

  // Whether the argument was passed.
  bool has(size_t parameter) const { return values_[parameter].has_value(); }
  const Value& operator[](size_t parameter) const { return *values_[parameter]; }
  const Value& value(size_t parameter, const Value& otherwise) const {
    return has(parameter) ? *values_[parameter] : otherwise;
  }
  // These throw Failure if another type was passed.
  int64_t integer(size_t parameter, int64_t otherwise) const;
  bool flag(size_t parameter, bool otherwise) const;
  const Text& text(size_t parameter) const;

 private:
  std::string_view what_;
  std::vector<std::optional<Value>> values_;
};

// Accepts any arguments: the function reads them itself.
inline constexpr std::string_view kAnyArguments = "*";

struct Filter {
  std::string_view name;
  std::string_view parameters;  // as BoundArguments reads them, or kAnyArguments
  Value (*apply)(Runtime& runtime, const Value& subject, const BoundArguments& arguments);
  Value (*apply_any)(Runtime& runtime, const Value& subject, const Arguments& arguments);
};
// Null where there is none of that name.
const Filter* find_filter(std::string_view name);
std::string unknown_filter(std::string_view name);
// Counts the result as a new value, whoever calls: `map` does so item by item.
Value call_filter(Runtime& runtime, const Filter& filter, const Value& subject,
                  Arguments arguments);

struct Test {
  std::string_view name;
  std::string_view parameters;
  bool (*holds)(const Value& subject, const BoundArguments& arguments);
};
const Test* find_test(std::string_view name);
std::string unknown_test(std::string_view name);
bool call_test(const Test& test, const Value& subject, Arguments arguments);

// object.name and object["name"], unless the object is a dict with such a key: a method, or
// nullopt. Throws Failure for methods that Python's type has and this subset lacks.
std::optional<Value> find_method(const Value& object, const std::string& name);

// object[key] and object.name, by jinja2's rules: missing items are undefined. Throws Failure where
// the object itself is undefined.
Value get_item(const Value& object, const Value& key);
Value get_attribute(const Value& object, const std::string& name);
// object[begin:end:step]; omitted parts are none.
Value get_slice(const Value& object, const Value& begin, const Value& end, const Value& step);

// range, namespace, raise_exception, strftime_now and so on; nullopt where there is none.
std::optional<Value> find_global(const std::string& name);

}  // namespace jackscrew::jinja
