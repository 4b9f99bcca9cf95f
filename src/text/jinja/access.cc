// object.name, object[key] and object[begin:end:step].
#include <algorithm>

#include "text/jinja/failure.h"
#include "text/jinja/tables.h"

namespace jackscrew::jinja {

namespace {

Value missing(const Value& object, std::string_view name) {
  return Value::undefined(fmt::format("a {} has no \"{}\"", object.type_name(), name));
}

std::optional<Value> member(const Value& object, const std::string& name) {
  if (Object* thing = object.as_object()) return thing->attribute(name);
  return find_method(object, name);
}

// Resolves an index that may count from the end; nullopt where it is out of range.
std::optional<size_t> place(int64_t index, size_t size) {
  if (index < 0) index += static_cast<int64_t>(size);
  if (index < 0 || index >= static_cast<int64_t>(size)) return std::nullopt;
  return static_cast<size_t>(index);
}

std::optional<Value> element(const Value& object, int64_t index) {
  if (const Text* text = object.as_text()) {
    const auto at = place(index, count_characters(text->view()));
    if (!at) return std::nullopt;
    size_t begin = 0;
    for (size_t i = 0; i < *at; ++i) begin += character_size(text->view(), begin);
    return text->substr(begin, character_size(text->view(), begin));
  }
  const Sequence* sequence = object.as_sequence();
  if (sequence == nullptr || sequence->kind == SequenceKind::dict_view) return std::nullopt;
  const auto at = place(index, sequence->items.size());
  return at ? std::optional(sequence->items[*at]) : std::nullopt;
}

// The indices that begin:end:step selects from `size` items.
std::vector<size_t> selected(size_t size, const Value& begin, const Value& end,
                             const Value& step_value) {
  const auto number = [](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const auto integer = value.defined().as_integer();
    if (!integer) fail("a {} in a slice", value.type_name());
    return *integer;
  };
  const int64_t step = number(step_value, 1);
  if (step == 0) fail("a slice with step 0");
  const auto count = static_cast<int64_t>(size);
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? count : count - 1;
  const auto clamp = [&](int64_t index) {
    if (index < 0) index = std::max<int64_t>(index, -count - 1) + count;
    return std::clamp(index, low, high);
  };
  const int64_t first = begin.is_none() ? (step > 0 ? low : high) : clamp(number(begin, 0));
  const int64_t last = end.is_none() ? (step > 0 ? high : low) : clamp(number(end, 0));
  std::vector<size_t> places;
  // Compares distances, since i + step may overflow.
  for (int64_t i = first; step > 0 ? i < last : i > last;) {
    places.push_back(static_cast<size_t>(i));
    const int64_t distance = step > 0 ? last - i : i - last;
    if (distance <= (step > 0 ? step : -(step + 1))) break;
    i += step;
  }
  return places;
}

}  // namespace

Value get_attribute(const Value& object, const std::string& name) {
  object.defined();
  if (auto found = member(object, name)) return std::move(*found);
  if (const Dict* dict = object.as_dict()) {
    if (const Value* value = dict->find(Value::text(name))) return *value;
  }
  return missing(object, name);
}

Value get_item(const Value& object, const Value& key) {
  object.defined();
  if (const Dict* dict = object.as_dict(); dict != nullptr && key.hashable()) {
    if (const Value* value = dict->find(key)) return *value;
  }
  if (const auto index = key.as_integer()) {
    if (auto found = element(object, *index)) return std::move(*found);
    return missing(object, std::to_string(*index));
  }
  const Text* name = key.as_text();
  if (name == nullptr) return missing(object, key.type_name());
  if (auto found = member(object, name->bytes())) return std::move(*found);
  return missing(object, name->view());
}

Value get_slice(const Value& object, const Value& begin, const Value& end, const Value& step) {
  object.defined();
  if (const Text* text = object.as_text()) {
    std::vector<size_t> begins;  // byte offset of each character
    for (size_t i = 0; i < text->size(); i += character_size(text->view(), i)) begins.push_back(i);
    Text out;
    for (const size_t at : selected(begins.size(), begin, end, step)) {
      out.append(*text, begins[at], character_size(text->view(), begins[at]));
    }
    return out;
  }
  const Sequence* sequence = object.as_sequence();
  if (sequence == nullptr || sequence->kind == SequenceKind::dict_view) {
    fail("a slice of a {}", object.type_name());
  }
  Values items;
  for (const size_t at : selected(sequence->items.size(), begin, end, step)) {
    items.push_back(sequence->items[at]);
  }
  return Value::sequence(sequence->kind, std::move(items));
}

}  // namespace jackscrew::jinja
