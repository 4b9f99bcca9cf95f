// The methods of texts, lists and dicts.
#include <algorithm>
#include <span>

#include "text/jinja/failure.h"
#include "text/jinja/strings.h"
#include "text/jinja/tables.h"

namespace jackscrew::jinja {

namespace {

struct Method {
  std::string_view name;
  std::string_view parameters;
  Value (*apply)(const Value& object, const BoundArguments& arguments);
};

// `object.method`, not yet called.
class BoundMethod : public Object {
 public:
  BoundMethod(Value object, const Method& method)
      : Object(object.depth() + 1), object_(std::move(object)), method_(method) {}

  std::string_view type_name() const override { return "method"; }
  bool callable() const override { return true; }
  Value call(Runtime&, Arguments arguments) override {
    const std::string what = fmt::format("the method \"{}\"", method_.name);
    return method_.apply(object_, BoundArguments(what, method_.parameters, std::move(arguments)));
  }

 private:
  Value object_;
  const Method& method_;
};

const Text& self(const Value& object) {
  return *object.as_text();
}

// The text argument, or null if it is none or was not passed.
const Text* text_or_null(const BoundArguments& arguments, size_t parameter) {
  if (!arguments.has(parameter) || arguments[parameter].is_none()) return nullptr;
  return &arguments.text(parameter);
}

template <Side side>
Value strip_method(const Value& object, const BoundArguments& arguments) {
  return strip(self(object), side, text_or_null(arguments, 0));
}

template <bool from_right>
Value split_method(const Value& object, const BoundArguments& arguments) {
  return Value::list(
      split(self(object), text_or_null(arguments, 0), arguments.integer(1, -1), from_right));
}

// Whether the text starts (or ends) with the argument, or with one item of a tuple.
template <bool (*fits)(std::string_view, std::string_view)>
Value affix_method(const Value& object, const BoundArguments& arguments) {
  const Sequence* several = arguments[0].as_sequence();
  if (several == nullptr) return fits(self(object).view(), arguments.text(0).view());
  if (several->kind != SequenceKind::tuple) fail("a {} of affixes", arguments[0].type_name());
  return std::any_of(several->items.begin(), several->items.end(), [&](const Value& item) {
    if (item.as_text() == nullptr) fail("a {} as an affix", item.type_name());
    return fits(self(object).view(), item.as_text()->view());
  });
}

bool starts(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix);
}

bool ends(std::string_view text, std::string_view suffix) {
  return text.ends_with(suffix);
}

// str.find and str.rfind, in characters.
template <bool from_right>
Value find_method(const Value& object, const BoundArguments& arguments) {
  const std::string_view text = self(object).view();
  const std::string_view part = arguments.text(0).view();
  const size_t at =
      from_right ? find_text(backwards(text), backwards(part)) : find_text(text, part);
  if (at == std::string_view::npos) return int64_t{-1};
  const size_t before = from_right ? text.size() - part.size() - at : at;
  return Value::size(count_characters(text.substr(0, before)));
}

Value count_in_text(const Value& object, const BoundArguments& arguments) {
  const std::string_view text = self(object).view();
  const std::string_view part = arguments.text(0).view();
  if (part.empty()) return Value::size(count_characters(text) + 1);
  int64_t count = 0;
  for (size_t at = find_text(text, part); at != std::string_view::npos;
       at = find_text(text, part, at + part.size())) {
    ++count;
  }
  return count;
}

Value join_method(const Value& object, const BoundArguments& arguments) {
  const Values items = to_values(arguments[0].defined());
  for (const Value& item : items) {
    if (item.as_text() == nullptr) fail("join of a {}", item.type_name());
  }
  return join(self(object), iterate(Value::list(items)));
}

Value is_digit_method(const Value& object, const BoundArguments&) {
  const std::string_view text = self(object).view();
  if (!is_ascii(text)) fail("isdigit of a text beyond ASCII");
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_no_letter(uint32_t c) {
  return !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'));
}

constexpr Method kTextMethods[] = {
    {"strip", "? chars", strip_method<Side::both>},
    {"lstrip", "? chars", strip_method<Side::left>},
    {"rstrip", "? chars", strip_method<Side::right>},
    {"split", "? sep maxsplit", split_method<false>},
    {"rsplit", "? sep maxsplit", split_method<true>},
    {"splitlines", "? keepends",
     [](const Value& object, const BoundArguments& a) {
       return Value::list(split_lines(self(object), a.flag(0, false)));
     }},
    {"startswith", "prefix", affix_method<starts>},
    {"endswith", "suffix", affix_method<ends>},
    {"removeprefix", "prefix",
     [](const Value& object, const BoundArguments& a) -> Value {
       const size_t size = a.text(0).size();
       const Text& text = self(object);
       return starts(text.view(), a.text(0).view()) ? text.substr(size, text.size() - size) : text;
     }},
    {"removesuffix", "suffix",
     [](const Value& object, const BoundArguments& a) -> Value {
       const Text& text = self(object);
       return ends(text.view(), a.text(0).view()) ? text.substr(0, text.size() - a.text(0).size())
                                                  : text;
     }},
    {"replace", "old new ? count",
     [](const Value& object, const BoundArguments& a) -> Value {
       return replace(self(object), a.text(0), a.text(1), a.integer(2, -1));
     }},
    {"upper", "",
     [](const Value& object, const BoundArguments&) -> Value { return to_upper(self(object)); }},
    {"lower", "",
     [](const Value& object, const BoundArguments&) -> Value { return to_lower(self(object)); }},
    {"capitalize", "",
     [](const Value& object, const BoundArguments&) -> Value { return capitalize(self(object)); }},
    {"title", "",
     [](const Value& object, const BoundArguments&) -> Value {
       return title(self(object), is_no_letter);
     }},
    {"find", "sub", find_method<false>},
    {"rfind", "sub", find_method<true>},
    {"count", "sub", count_in_text},
    {"join", "iterable", join_method},
    {"isdigit", "", is_digit_method},
};

Value copy(const Value& object, const BoundArguments&) {
  return object;
}

constexpr Method kListMethods[] = {
    {"index", "value",
     [](const Value& object, const BoundArguments& a) -> Value {
       const Values& items = object.as_sequence()->items;
       const auto found = std::find_if(items.begin(), items.end(),
                                       [&](const Value& item) { return equal(item, a[0]); });
       if (found == items.end()) fail("index: the value is not in the list");
       return static_cast<int64_t>(found - items.begin());
     }},
    {"count", "value",
     [](const Value& object, const BoundArguments& a) -> Value {
       const Values& items = object.as_sequence()->items;
       return static_cast<int64_t>(std::count_if(
           items.begin(), items.end(), [&](const Value& item) { return equal(item, a[0]); }));
     }},
    {"copy", "", copy},
};

// The result of keys(), values() and items().
template <typename Get>
Value view(const Value& object, const Get& get) {
  Values items;
  for (const auto& item : object.as_dict()->items) items.push_back(get(item));
  return Value::sequence(SequenceKind::dict_view, std::move(items));
}

constexpr Method kDictMethods[] = {
    {"get", "key ? default",
     [](const Value& object, const BoundArguments& a) -> Value {
       if (!a[0].hashable()) fail("a {} as a key", a[0].type_name());
       const Value* found = object.as_dict()->find(a[0]);
       return found != nullptr ? *found : a.value(1, None{});
     }},
    {"items", "",
     [](const Value& object, const BoundArguments&) {
       return view(object, [](const auto& item) {
         return Value::tuple({item.first, item.second});
       });
     }},
    {"keys", "",
     [](const Value& object, const BoundArguments&) {
       return view(object, [](const auto& item) { return item.first; });
     }},
    {"values", "",
     [](const Value& object, const BoundArguments&) {
       return view(object, [](const auto& item) { return item.second; });
     }},
    {"copy", "", copy},
};

// Other methods of Python's types. Those that would change a list or dict are unsafe in jinja2's
// sandbox, so using them is an error there as well.
constexpr std::string_view kOtherOfText[] = {
    "casefold", "center",  "encode",     "expandtabs",  "format",       "format_map", "index",
    "isalnum",  "isalpha", "isascii",    "isdecimal",   "isidentifier", "islower",    "isnumeric",
    "isspace",  "istitle", "isupper",    "isprintable", "ljust",        "maketrans",  "partition",
    "rindex",   "rjust",   "rpartition", "swapcase",    "translate",    "zfill"};
constexpr std::string_view kOtherOfList[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kOtherOfDict[] = {"clear",   "fromkeys",   "pop",
                                             "popitem", "setdefault", "update"};
constexpr std::string_view kOtherOfNumber[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
    "numerator",        "real",      "to_bytes"};

std::optional<Value> look_up(std::span<const Method> methods,
                             std::span<const std::string_view> others, const Value& object,
                             const std::string& name) {
  for (const Method& method : methods) {
    if (method.name == name) return Value(std::make_shared<BoundMethod>(object, method));
  }
  if (std::find(others.begin(), others.end(), name) != others.end()) {
    fault("\"{}\" of a {} is not supported", name, object.type_name());
  }
  return std::nullopt;
}

}  // namespace

std::optional<Value> find_method(const Value& object, const std::string& name) {
  if (object.as_text() != nullptr) return look_up(kTextMethods, kOtherOfText, object, name);
  if (object.as_dict() != nullptr) return look_up(kDictMethods, kOtherOfDict, object, name);
  if (object.is_number()) return look_up({}, kOtherOfNumber, object, name);
  const Sequence* sequence = object.as_sequence();
  if (sequence == nullptr || sequence->kind == SequenceKind::dict_view) return std::nullopt;
  return look_up(kListMethods, kOtherOfList, object, name);
}

}  // namespace jackscrew::jinja
