// Filters for values with items.
#include <algorithm>
#include <charconv>

#include "text/jinja/failure.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/runtime.h"
#include "text/jinja/strings.h"

namespace jackscrew::jinja {

namespace {

int depth_of(const Value& subject, const Arguments& arguments) {
  int depth = subject.depth();
  for (const Value& value : arguments.positional) depth = std::max(depth, value.depth());
  for (const auto& [name, value] : arguments.named) depth = std::max(depth, value.depth());
  return depth;
}

// Looks up items by a path such as "function.name" or "0"; a path of none returns the item itself.
class Getter {
 public:
  explicit Getter(const Value& path) {
    const Text* text = path.as_text();
    if (text == nullptr) {
      if (!path.is_none()) keys_.push_back(path);
      return;
    }
    const Text dot(".", kTemplate);
    for (const Value& part : split(*text, &dot, -1, false)) {
      const std::string& name = part.as_text()->bytes();
      int64_t number = 0;
      const auto parsed = std::from_chars(name.data(), name.data() + name.size(), number);
      const bool is_number = !name.empty() && name.front() != '-' && parsed.ec == std::errc() &&
                             parsed.ptr == name.data() + name.size();
      keys_.push_back(is_number ? Value(number) : part);
    }
  }

  // `otherwise`, unless it is none, replaces an undefined value on the way.
  Value operator()(Value item, const Value& otherwise = None{}) const {
    for (const Value& key : keys_) {
      item = get_item(item, key);
      if (item.is_undefined() && !otherwise.is_none()) item = otherwise;
    }
    return item;
  }

 private:
  Values keys_;
};

// Lower-cases texts, as the filters that order values do by default.
Value without_case(const Value& value) {
  return value.as_text() == nullptr ? value : Value(to_lower(*value.as_text()));
}

// What an item is ordered by.
Value key_of(Runtime& runtime, const Value& item, const Getter& getter, bool case_sensitive) {
  const Value found = getter(item);
  Value key = case_sensitive ? found : without_case(found);
  runtime.count_value(key, !case_sensitive);
  return key;
}

Value length_filter(Runtime&, const Value& subject, const BoundArguments&) {
  const auto size = length(subject);
  if (!size) fail("the length of a {}", subject.type_name());
  return *size;
}

// A generator, where Python returns an iterator.
Value read_once(Values items) {
  const Value list = Value::list(std::move(items));
  return Value::generator(list.depth(), iterate(list));
}

// The items of a dict, as tuples.
Values pairs_of(const Dict& dict) {
  Values pairs;
  for (const auto& item : dict.items) pairs.push_back(Value::tuple({item.first, item.second}));
  return pairs;
}

Value first(Runtime&, const Value& subject, const BoundArguments&) {
  return iterate(subject)().value_or(Value::undefined("there is no first item"));
}

Value last(Runtime&, const Value& subject, const BoundArguments&) {
  if (subject.as_generator() != nullptr) fault("the last of a generator");
  const Values items = to_values(subject);
  return items.empty() ? Value::undefined("there is no last item") : items.back();
}

Value join_filter(Runtime&, const Value& subject, const BoundArguments& arguments) {
  const Getter getter(arguments.value(1, None{}));
  const Iterator items = iterate(subject);
  return join(to_text(arguments.value(0, Text())), [&]() -> std::optional<Value> {
    auto item = items();
    return item ? std::optional(getter(std::move(*item))) : std::nullopt;
  });
}

Value list_filter(Runtime&, const Value& subject, const BoundArguments&) {
  return Value::list(to_values(subject));
}

Value items_filter(Runtime&, const Value& subject, const BoundArguments&) {
  if (subject.is_undefined()) return Value::generator(0, [] { return std::nullopt; });
  if (subject.as_dict() == nullptr) fail("items of a {}", subject.type_name());
  return read_once(pairs_of(*subject.as_dict()));
}

Value reverse(Runtime&, const Value& subject, const BoundArguments&) {
  if (subject.as_text() != nullptr) return get_slice(subject, None{}, None{}, int64_t{-1});
  Values items = to_values(subject);
  std::reverse(items.begin(), items.end());
  // Whatever Python can reverse in place becomes an iterator.
  return subject.as_generator() != nullptr ? Value::list(std::move(items))
                                           : read_once(std::move(items));
}

// Sorts by keys, stably in both directions.
Values sorted(Values items, bool reversed, const std::function<Value(const Value&)>& key) {
  std::vector<std::pair<Value, size_t>> keys;
  for (const Value& item : items) keys.emplace_back(key(item), keys.size());
  std::stable_sort(keys.begin(), keys.end(), [&](const auto& a, const auto& b) {
    return compare(reversed ? b.first : a.first, reversed ? a.first : b.first, "<").value_or(0) < 0;
  });
  Values out;
  for (const auto& entry : keys) out.push_back(std::move(items[entry.second]));
  return out;
}

Value sort(Runtime& runtime, const Value& subject, const BoundArguments& arguments) {
  const Value attribute = arguments.value(2, None{});
  if (attribute.as_text() != nullptr && contains(attribute, Value::text(","))) {
    fault("sort by several attributes");
  }
  const Getter getter(attribute);
  const bool case_sensitive = arguments.flag(1, false);
  // Each key is wrapped in a list, as in jinja2: then equal items of any type compare.
  return Value::list(sorted(to_values(subject), arguments.flag(0, false), [&](const Value& item) {
    return Value::list({key_of(runtime, item, getter, case_sensitive)});
  }));
}

Value dictsort(Runtime& runtime, const Value& subject, const BoundArguments& arguments) {
  if (subject.defined().as_dict() == nullptr) fail("dictsort of a {}", subject.type_name());
  const std::string by = arguments.has(1) ? arguments.text(1).bytes() : "key";
  if (by != "key" && by != "value") fail("dictsort by \"{}\"", by);
  const Getter getter(int64_t{by == "key" ? 0 : 1});
  const bool case_sensitive = arguments.flag(0, false);
  return Value::list(
      sorted(pairs_of(*subject.as_dict()), arguments.flag(2, false),
             [&](const Value& item) { return key_of(runtime, item, getter, case_sensitive); }));
}

Value unique(Runtime& runtime, const Value& subject, const BoundArguments& arguments) {
  const Getter getter(arguments.value(1, None{}));
  const bool case_sensitive = arguments.flag(0, false);
  Values seen;
  Values out;
  for (Value& item : to_values(subject)) {
    Value key = key_of(runtime, item, getter, case_sensitive);
    if (!key.hashable()) fail("unique of a {}", key.type_name());
    runtime.count_steps(static_cast<int64_t>(seen.size() / 16));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& k) { return equal(k, key); })) {
      continue;
    }
    seen.push_back(std::move(key));
    out.push_back(std::move(item));
  }
  return read_once(std::move(out));
}

template <Comparison::Operator better>
Value extreme(Runtime& runtime, const Value& subject, const BoundArguments& arguments) {
  const Getter getter(arguments.value(1, None{}));
  const bool case_sensitive = arguments.flag(0, false);
  const Iterator items = iterate(subject);
  auto best = items();
  if (!best) return Value::undefined("no item to choose from");
  while (auto item = items()) {
    if (apply(better, key_of(runtime, *item, getter, case_sensitive),
              key_of(runtime, *best, getter, case_sensitive))) {
      best = std::move(item);
    }
  }
  return *best;
}

Value sum(Runtime& runtime, const Value& subject, const BoundArguments& arguments) {
  const Getter getter(arguments.value(0, None{}));
  Value total = arguments.value(1, int64_t{0});
  if (total.as_text() != nullptr) fail("sum of texts");
  const Iterator items = iterate(subject);
  while (auto item = items()) {
    total = apply(Binary::Operator::add, total, getter(*item));
    runtime.count_value(total, true);
  }
  return total;
}

// The items that map and select read: as in jinja2, none if the subject is false.
Iterator iterate_if_any(const Value& subject) {
  return subject.truth() ? iterate(subject) : [] { return std::nullopt; };
}

// map(attribute="path", default=x) or map("filter", arguments ...).
Value map(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  const int depth = depth_of(subject, arguments);
  const Iterator items = iterate_if_any(subject);
  if (arguments.positional.empty()) {
    const BoundArguments bound("the filter \"map\"", "attribute ? default", arguments);
    return Value::generator(depth,
                            [items, getter = Getter(bound[0]),
                             otherwise = bound.value(1, None{})]() -> std::optional<Value> {
                              auto item = items();
                              return item ? std::optional(getter(std::move(*item), otherwise))
                                          : std::nullopt;
                            });
  }
  const Text* name = arguments.positional.front().as_text();
  const Filter* filter = name == nullptr ? nullptr : find_filter(name->view());
  if (filter == nullptr) fault("map: {}", unknown_filter(name == nullptr ? "" : name->view()));
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin());
  return Value::generator(depth, [&runtime, items, filter, rest]() -> std::optional<Value> {
    auto item = items();
    return item ? std::optional(call_filter(runtime, *filter, *item, rest)) : std::nullopt;
  });
}

// select("test", arguments ...), selectattr("path", "test", arguments ...) and the opposites reject
// and rejectattr.
template <bool by_attribute, bool wanted>
Value select(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  const size_t skipped = by_attribute ? 1 : 0;
  if (arguments.positional.size() < skipped) fault("selectattr: \"attribute\" is missing");
  const Getter getter(by_attribute ? arguments.positional.front() : Value(None{}));
  const Test* test = nullptr;
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(skipped));
  if (!rest.positional.empty()) {
    const Text* name = rest.positional.front().as_text();
    test = name == nullptr ? nullptr : find_test(name->view());
    if (test == nullptr) fault("select: {}", unknown_test(name == nullptr ? "" : name->view()));
    rest.positional.erase(rest.positional.begin());
  }
  const Iterator items = iterate_if_any(subject);
  return Value::generator(depth_of(subject, arguments),
                          [&runtime, items, getter, test, rest]() -> std::optional<Value> {
                            while (auto item = items()) {
                              runtime.count_steps(1);
                              const Value value = getter(*item);
                              runtime.count_value(value, false);
                              const bool holds =
                                  test == nullptr ? value.truth() : call_test(*test, value, rest);
                              if (holds == wanted) return item;
                            }
                            return std::nullopt;
                          });
}

constexpr Filter kSequenceFilters[] = {
    {"length", "", length_filter, nullptr},
    {"count", "", length_filter, nullptr},
    {"first", "", first, nullptr},
    {"last", "", last, nullptr},
    {"join", "? d attribute", join_filter, nullptr},
    {"list", "", list_filter, nullptr},
    {"items", "", items_filter, nullptr},
    {"reverse", "", reverse, nullptr},
    {"sort", "? reverse case_sensitive attribute", sort, nullptr},
    {"dictsort", "? case_sensitive by reverse", dictsort, nullptr},
    {"unique", "? case_sensitive attribute", unique, nullptr},
    {"min", "? case_sensitive attribute", extreme<Comparison::Operator::less>, nullptr},
    {"max", "? case_sensitive attribute", extreme<Comparison::Operator::greater>, nullptr},
    {"sum", "? attribute start", sum, nullptr},
    {"map", kAnyArguments, nullptr, map},
    {"select", kAnyArguments, nullptr, select<false, true>},
    {"reject", kAnyArguments, nullptr, select<false, false>},
    {"selectattr", kAnyArguments, nullptr, select<true, true>},
    {"rejectattr", kAnyArguments, nullptr, select<true, false>},
};

}  // namespace

std::span<const Filter> sequence_filters() {
  return kSequenceFilters;
}

const Filter* find_filter(std::string_view name) {
  for (const auto table : {scalar_filters(), sequence_filters()}) {
    for (const Filter& filter : table) {
      if (filter.name == name) return &filter;
    }
  }
  return nullptr;
}

std::string unknown_filter(std::string_view name) {
  return fmt::format("the filter \"{}\" is not supported", name);
}

}  // namespace jackscrew::jinja
