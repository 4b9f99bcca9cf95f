// Values as templates see them: Python's, as far as chat templates need them.
//
// All but objects and generators are immutable, as in ImmutableSandboxedEnvironment. Integers have
// 64 bits; overflow is a Failure.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/text.h"

namespace jackscrew::jinja {

class Value;
class Runtime;

using Values = std::vector<Value>;

// The longest list: the characters of a text would take hundreds of bytes each.
inline constexpr size_t kMaxItems = size_t{1} << 20;
[[noreturn]] void fail_too_many_items();
// Appends, or throws Failure beyond kMaxItems.
void add_item(Values& items, Value item);

// Names and their values, in a scope or a namespace. Names are unique.
using Variables = std::vector<std::pair<std::string, Value>>;
// The value of a name, or null.
const Value* find_variable(const Variables& variables, const std::string& name);
void set_variable(Variables& variables, const std::string& name, Value value);

// Returns one item after another, then nullopt for ever.
using Iterator = std::function<std::optional<Value>()>;

// The arguments of a call: f(a, b, name=c).
struct Arguments {
  Values positional;
  Variables named;
};
// Removes and returns a named argument; nullopt where there is none.
std::optional<Value> take_named(Arguments& arguments, std::string_view name);

// The absence of a value; `what` is the error message when it is used.
struct Undefined {
  std::shared_ptr<const std::string> what;
};
struct None {};

enum class SequenceKind : uint8_t { list, tuple, range, dict_view };

struct Sequence {
  SequenceKind kind = SequenceKind::list;
  Values items;
  int depth = 1;       // nesting depth of containers
  int64_t weight = 0;  // see Value::weight()
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion, with distinct keys
  int depth = 1;
  int64_t weight = 0;

  const Value* find(const Value& key) const;
};

// The result of `map`, `select` and others: can be read once and has no length.
struct Generator {
  Iterator next;
  int depth = 1;
};

// The deepest nesting of values: their destruction and comparison recurse.
inline constexpr int kMaxDepth = 100;
// Returns `depth`, or throws Failure beyond kMaxDepth.
int checked_depth(int depth);

// The largest weight of a value: a comparison may walk over all of it. A record of JSON, which has
// 64 MiB, stays below.
inline constexpr int64_t kMaxWeight = int64_t{1} << 26;

// Functions, methods, macros, `loop`, namespaces.
class Object {
 public:
  // `depth` is that of the values within it, plus one. A namespace's values do not count, since
  // they change; Runtime takes them out before the end.
  explicit Object(int depth = 0) : depth_(checked_depth(depth)) {}
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  int depth() const { return depth_; }
  virtual std::string_view type_name() const = 0;
  virtual std::optional<Value> attribute(const std::string& name);
  virtual bool callable() const { return false; }
  virtual Value call(Runtime& runtime, Arguments arguments);

 private:
  int depth_;
};

class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(None) : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(Text text) : data_(std::make_shared<const Text>(std::move(text))) {}
  Value(std::shared_ptr<Object> object) : data_(std::move(object)) {}
  Value(const void*) = delete;

  static Value undefined(std::string what);
  static Value text(std::string bytes, Origin origin = kContent) {
    return Text(std::move(bytes), origin);
  }
  static Value size(size_t size) { return static_cast<int64_t>(size); }
  // These throw Failure where the items are nested too deep, or weigh too much.
  static Value list(Values items) { return sequence(SequenceKind::list, std::move(items)); }
  static Value tuple(Values items) { return sequence(SequenceKind::tuple, std::move(items)); }
  static Value sequence(SequenceKind kind, Values items);
  // Of equal keys, the first one's position and the last one's value are kept. Throws Failure for a
  // key that is not hashable.
  static Value dict(std::vector<std::pair<Value, Value>> items);
  // `depth` is that of the values that `next` holds.
  static Value generator(int depth, Iterator next);

  bool is_undefined() const { return holds<Undefined>(); }
  bool is_none() const { return holds<None>(); }
  // The value if it is of this kind, otherwise null.
  const bool* as_bool() const { return std::get_if<bool>(&data_); }
  const int64_t* as_int() const { return std::get_if<int64_t>(&data_); }
  const double* as_float() const { return std::get_if<double>(&data_); }
  const Text* as_text() const { return pointer<const Text>(); }
  const Sequence* as_sequence() const { return pointer<const Sequence>(); }
  const Dict* as_dict() const { return pointer<const Dict>(); }
  const Generator* as_generator() const { return pointer<const Generator>(); }
  Object* as_object() const { return pointer<Object>(); }
  // Integers and booleans, which are integers in Python.
  std::optional<int64_t> as_integer() const;
  bool is_number() const { return as_integer().has_value() || holds<double>(); }
  bool is_list() const;
  bool is_callable() const;

  // "int", "str", "list" ...
  std::string_view type_name() const;
  bool truth() const;
  bool hashable() const;
  int depth() const;
  // How much a walk over the value visits: the values within it, each as often as it is reached,
  // since lists that share their items may be few in memory and endless to walk over; a text counts
  // as one for every 256 bytes.
  int64_t weight() const;
  // Returns *this; throws Failure for an undefined value, naming it.
  const Value& defined() const;
  // Python's `is`, as far as it is meaningful: the same none or boolean, the same object, or equal
  // numbers and strings of one type.
  bool same_as(const Value& other) const;

 private:
  template <typename T>
  bool holds() const {
    return std::holds_alternative<T>(data_);
  }
  template <typename T>
  T* pointer() const {
    const auto* shared = std::get_if<std::shared_ptr<T>>(&data_);
    return shared == nullptr ? nullptr : shared->get();
  }

  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>,
               std::shared_ptr<const Generator>, std::shared_ptr<Object>>
      data_;
};

bool equal(const Value& a, const Value& b);

// Negative, 0 or positive; nullopt where one of them is NaN. Throws Failure where Python cannot
// order them either; `sign` is for the message.
std::optional<int> compare(const Value& a, const Value& b, std::string_view sign);

// The items of a sequence or generator, the characters of a text, the keys of a dict; no items for
// an undefined value. Throws Failure for other values. The iterator shares the value.
Iterator iterate(const Value& value);
Values to_values(const Value& value);
// Python's len(); nullopt where there is none.
std::optional<int64_t> length(const Value& value);

// The characters of a text, each as a text.
Values characters(const Text& text);

// Python's str(): what {{ value }} prints. Throws Failure for values that would print as an
// address.
Text to_text(const Value& value);
// Python's repr().
std::string repr(const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;          // of one level; nullopt: one line
  std::optional<std::string> item_separator;  // nullopt: ", ", or "," where lines are broken
  std::string key_separator = ": ";
};
// Python's json.dumps(). Throws Failure for values that JSON cannot represent.
std::string to_json(const Value& value, const JsonStyle& style);

}  // namespace jackscrew::jinja
