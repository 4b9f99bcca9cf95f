#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/failure.h"

namespace jackscrew::jinja {

namespace {

template <typename T>
std::optional<int> order(const T& a, const T& b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

// long double holds every int64_t and every double exactly, so that they compare exactly.
std::optional<int> order_numbers(const Value& a, const Value& b) {
  const auto number = [](const Value& value) {
    const auto integer = value.as_integer();
    return integer ? static_cast<long double>(*integer)
                   : static_cast<long double>(*value.as_float());
  };
  const long double left = number(a);
  const long double right = number(b);
  if (std::isnan(left) || std::isnan(right)) return std::nullopt;
  return order(left, right);
}

bool equal_items(const Sequence& a, const Sequence& b) {
  return a.kind == b.kind &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), equal);
}

bool equal_dicts(const Dict& a, const Dict& b) {
  return a.items.size() == b.items.size() &&
         std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
           const Value* other = b.find(item.first);
           return other != nullptr && equal(item.second, *other);
         });
}

int64_t checked_weight(int64_t weight) {
  if (weight > kMaxWeight) fault("a value that holds more than {} others", kMaxWeight);
  return weight;
}

}  // namespace

const Value* find_variable(const Variables& variables, const std::string& name) {
  for (const auto& [known, value] : variables) {
    if (known == name) return &value;
  }
  return nullptr;
}

void set_variable(Variables& variables, const std::string& name, Value value) {
  for (auto& [known, old] : variables) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

std::optional<Value> take_named(Arguments& arguments, std::string_view name) {
  const auto it = std::find_if(arguments.named.begin(), arguments.named.end(),
                               [&](const auto& named) { return named.first == name; });
  if (it == arguments.named.end()) return std::nullopt;
  std::optional<Value> value(std::move(it->second));
  arguments.named.erase(it);
  return value;
}

int checked_depth(int depth) {
  if (depth > kMaxDepth) fault("values nested more than {} deep", kMaxDepth);
  return depth;
}

std::optional<Value> Object::attribute(const std::string&) {
  return std::nullopt;
}

Value Object::call(Runtime&, Arguments) {
  fail("a {} cannot be called", type_name());
}

const Value* Dict::find(const Value& key) const {
  const auto found = std::find_if(items.begin(), items.end(),
                                  [&](const auto& item) { return equal(item.first, key); });
  return found == items.end() ? nullptr : &found->second;
}

Value Value::undefined(std::string what) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(what))};
  return value;
}

void fail_too_many_items() {
  fault("a list of more than {} items", kMaxItems);
}

void add_item(Values& items, Value item) {
  if (items.size() == kMaxItems) fail_too_many_items();
  items.push_back(std::move(item));
}

Value Value::sequence(SequenceKind kind, Values items) {
  if (items.size() > kMaxItems) fail_too_many_items();
  int depth = 0;
  int64_t weight = 0;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth());
    weight += 1 + item.weight();
  }
  Value value;
  value.data_ = std::make_shared<const Sequence>(
      Sequence{kind, std::move(items), checked_depth(depth + 1), checked_weight(weight)});
  return value;
}

Value Value::dict(std::vector<std::pair<Value, Value>> items) {
  Dict dict;
  int depth = 0;
  for (auto& item : items) {
    if (!item.first.hashable()) fail("a {} as a key", item.first.type_name());
    depth = std::max({depth, item.first.depth(), item.second.depth()});
    const auto known = std::find_if(dict.items.begin(), dict.items.end(), [&](const auto& other) {
      return equal(other.first, item.first);
    });
    if (known != dict.items.end()) {
      known->second = std::move(item.second);
    } else {
      dict.items.push_back(std::move(item));
    }
  }
  dict.depth = checked_depth(depth + 1);
  int64_t weight = 0;
  for (const auto& [key, item] : dict.items) weight += 1 + key.weight() + item.weight();
  dict.weight = checked_weight(weight);
  Value value;
  value.data_ = std::make_shared<const Dict>(std::move(dict));
  return value;
}

Value Value::generator(int depth, Iterator next) {
  Value value;
  value.data_ =
      std::make_shared<const Generator>(Generator{std::move(next), checked_depth(depth + 1)});
  return value;
}

std::optional<int64_t> Value::as_integer() const {
  if (const bool* flag = as_bool()) return *flag ? 1 : 0;
  if (const int64_t* integer = as_int()) return *integer;
  return std::nullopt;
}

bool Value::is_list() const {
  return as_sequence() != nullptr && as_sequence()->kind == SequenceKind::list;
}

bool Value::is_callable() const {
  return is_undefined() || (as_object() != nullptr && as_object()->callable());
}

std::string_view Value::type_name() const {
  struct NameOfType {
    std::string_view operator()(const Undefined&) const { return "undefined value"; }
    std::string_view operator()(const None&) const { return "none"; }
    std::string_view operator()(bool) const { return "bool"; }
    std::string_view operator()(int64_t) const { return "int"; }
    std::string_view operator()(double) const { return "float"; }
    std::string_view operator()(const std::shared_ptr<const Text>&) const { return "str"; }
    std::string_view operator()(const std::shared_ptr<const Sequence>& sequence) const {
      constexpr std::string_view kNames[] = {"list", "tuple", "range", "dict view"};
      return kNames[static_cast<size_t>(sequence->kind)];
    }
    std::string_view operator()(const std::shared_ptr<const Dict>&) const { return "dict"; }
    std::string_view operator()(const std::shared_ptr<const Generator>&) const {
      return "generator";
    }
    std::string_view operator()(const std::shared_ptr<Object>& object) const {
      return object->type_name();
    }
  };
  return std::visit(NameOfType{}, data_);
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (const auto integer = as_integer()) return *integer != 0;
  if (const double* number = as_float()) return *number != 0.0;
  return length(*this).value_or(1) != 0;
}

bool Value::hashable() const {
  if (as_dict() != nullptr) return false;
  const Sequence* sequence = as_sequence();
  if (sequence == nullptr) return true;
  if (sequence->kind == SequenceKind::range) return true;
  return sequence->kind == SequenceKind::tuple &&
         std::all_of(sequence->items.begin(), sequence->items.end(),
                     [](const Value& item) { return item.hashable(); });
}

int Value::depth() const {
  if (const Sequence* sequence = as_sequence()) return sequence->depth;
  if (const Dict* dict = as_dict()) return dict->depth;
  if (const Generator* generator = as_generator()) return generator->depth;
  if (const Object* object = as_object()) return object->depth();
  return 0;
}

int64_t Value::weight() const {
  constexpr size_t kBytes = 256;
  if (const Text* text = as_text()) return static_cast<int64_t>(text->size() / kBytes);
  if (const Sequence* sequence = as_sequence()) return sequence->weight;
  if (const Dict* dict = as_dict()) return dict->weight;
  return 0;
}

const Value& Value::defined() const {
  if (const auto* undefined = std::get_if<Undefined>(&data_)) {
    fail("{}", undefined->what == nullptr ? "an undefined value is used" : *undefined->what);
  }
  return *this;
}

bool Value::same_as(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_undefined()) return false;
  if (is_number() || is_none() || as_text() != nullptr) return equal(*this, other);
  return as_sequence() == other.as_sequence() && as_dict() == other.as_dict() &&
         as_generator() == other.as_generator() && as_object() == other.as_object();
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return order_numbers(a, b) == 0;
  if (a.as_text() != nullptr && b.as_text() != nullptr) {
    return a.as_text()->view() == b.as_text()->view();
  }
  if (a.as_sequence() != nullptr && b.as_sequence() != nullptr) {
    return equal_items(*a.as_sequence(), *b.as_sequence());
  }
  if (a.as_dict() != nullptr && b.as_dict() != nullptr) {
    return equal_dicts(*a.as_dict(), *b.as_dict());
  }
  if (a.is_undefined() || a.is_none()) {
    return a.is_undefined() == b.is_undefined() && a.is_none() == b.is_none();
  }
  return a.same_as(b);
}

std::optional<int> compare(const Value& a, const Value& b, std::string_view sign) {
  a.defined();
  b.defined();
  if (a.is_number() && b.is_number()) return order_numbers(a, b);
  if (a.as_text() != nullptr && b.as_text() != nullptr) {
    // UTF-8 sorts in the order of code points.
    return order(a.as_text()->view().compare(b.as_text()->view()), 0);
  }
  const Sequence* left = a.as_sequence();
  const Sequence* right = b.as_sequence();
  const bool ordered = left != nullptr && right != nullptr && left->kind == right->kind &&
                       (left->kind == SequenceKind::list || left->kind == SequenceKind::tuple);
  if (!ordered) fail("{} between {} and {}", sign, a.type_name(), b.type_name());
  const size_t shorter = std::min(left->items.size(), right->items.size());
  for (size_t i = 0; i < shorter; ++i) {
    if (!equal(left->items[i], right->items[i])) {
      return compare(left->items[i], right->items[i], sign);
    }
  }
  return order(left->items.size(), right->items.size());
}

Values characters(const Text& text) {
  Values out;
  for (size_t i = 0; i < text.size();) {
    const size_t size = character_size(text.view(), i);
    add_item(out, text.substr(i, size));
    i += size;
  }
  return out;
}

Iterator iterate(const Value& value) {
  if (value.is_undefined()) return [] { return std::nullopt; };
  if (const Generator* generator = value.as_generator()) {
    return [value, generator] { return generator->next(); };
  }
  if (const Text* text = value.as_text()) {
    return [value, text, at = size_t{0}]() mutable -> std::optional<Value> {
      if (at == text->size()) return std::nullopt;
      const size_t begin = at;
      at += character_size(text->view(), at);
      return text->substr(begin, at - begin);
    };
  }
  if (const Sequence* sequence = value.as_sequence()) {
    return [value, sequence, at = size_t{0}]() mutable -> std::optional<Value> {
      if (at == sequence->items.size()) return std::nullopt;
      return sequence->items[at++];
    };
  }
  if (const Dict* dict = value.as_dict()) {
    return [value, dict, at = size_t{0}]() mutable -> std::optional<Value> {
      if (at == dict->items.size()) return std::nullopt;
      return dict->items[at++].first;
    };
  }
  fail("a {} has no items", value.type_name());
}

Values to_values(const Value& value) {
  if (const Sequence* sequence = value.as_sequence()) return sequence->items;
  Values items;
  const Iterator next = iterate(value);
  while (auto item = next()) add_item(items, std::move(*item));
  return items;
}

std::optional<int64_t> length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const Text* text = value.as_text()) {
    return static_cast<int64_t>(count_characters(text->view()));
  }
  if (const Sequence* sequence = value.as_sequence()) {
    return static_cast<int64_t>(sequence->items.size());
  }
  if (const Dict* dict = value.as_dict()) return static_cast<int64_t>(dict->items.size());
  return std::nullopt;
}

}  // namespace jackscrew::jinja
