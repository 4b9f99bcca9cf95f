#include "data/json_tree.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/json_object.h"
#include "data/record_json.h"

namespace jackscrew {

namespace {

// Builds the tree from what the parser finds, as its own builder does, and stops at limits.
class Builder final : public nlohmann::json_sax<RecordJson> {
 public:
  Builder(std::string_view text, const std::string& place) : text_(text), place_(place) {}

  RecordJson take_value() { return std::move(root_); }
  std::string take_complaint() { return std::move(complaint_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string& text) override {
    const bool is_whole = text.find_first_not_of("-0123456789") == std::string::npos;
    return is_whole ? add(RecordJson::binary({text.begin(), text.end()})) : add(value);
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(RecordJson::binary_t&) override { return false; }  // JSON text has none

  bool start_object(size_t) override { return open(RecordJson::object()); }
  bool key(std::string& name) override {
    Open& object = open_.back();
    if (++object.keys > kMostKeys) {
      fail_record(
          place_, fmt::format("an object of more than {} keys, \"{}\" for one", kMostKeys, name),
          "a record has a few keys; a table is written with one object a row, by pandas with "
          "to_json(PATH, orient=\"records\", lines=True)");
    }
    object.member = &(*object.value)[name];
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(RecordJson::array()); }
  bool end_array() override { return close(); }

  bool parse_error(size_t position, const std::string&,
                   const RecordJson::exception& error) override {
    complaint_ = error.what();
    // Python's json writes both unless told otherwise.
    for (const std::string_view word : {"NaN", "Infinity"}) {
      if (!text_.substr(std::min(position - 1, text_.size())).starts_with(word)) continue;
      complaint_ += fmt::format("; JSON has no {}: write null", word);
    }
    return false;
  }

 private:
  // An object or array whose end has not come yet.
  struct Open {
    RecordJson* value;
    RecordJson* member = nullptr;  // of an object: the one whose key came last
    size_t keys = 0;
  };

  bool add(RecordJson value) {
    put(std::move(value));
    return true;
  }

  bool open(RecordJson empty) {
    // Code that walks over JSON, or copies it, is recursive.
    if (std::cmp_equal(open_.size(), jinja::kMaxDepth)) {
      fail_record(place_, fmt::format("JSON nested more than {} deep", jinja::kMaxDepth), "");
    }
    open_.push_back({put(std::move(empty))});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  // Places of open values stay: nothing is added beside them until they are closed.
  RecordJson* put(RecordJson value) {
    if (open_.empty()) return &(root_ = std::move(value));
    const Open& in = open_.back();
    if (in.value->is_array()) return &in.value->emplace_back(std::move(value));
    return &(*in.member = std::move(value));
  }

  const std::string_view text_;
  const std::string& place_;
  RecordJson root_;
  std::vector<Open> open_;
  std::string complaint_;
};

}  // namespace

std::optional<RecordJson> parse_json_tree(std::string_view text, const std::string& place,
                                          std::string& complaint) {
  if (auto found = nul_complaint(text)) {
    complaint = std::move(*found);
    return std::nullopt;
  }
  Builder builder(text, place);
  if (RecordJson::sax_parse(text, &builder)) return builder.take_value();
  complaint = builder.take_complaint();
  return std::nullopt;
}

const RecordJson* member(const RecordJson& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const RecordJson* json_member(const RecordJson& object, const std::string& key) {
  const RecordJson* found = member(object, key);
  return found == nullptr || *found == "" || *found == "null" ? nullptr : found;
}

bool holds_something(const RecordJson& value) {
  if (value.is_string()) return value != "";
  return value.is_structured() && std::any_of(value.begin(), value.end(), holds_something);
}

RecordJson unquoted(const RecordJson& value, const std::string& place) {
  if (!value.is_string()) return value;
  std::string complaint;
  auto inner = parse_json_tree(value.get_ref<const std::string&>(), place, complaint);
  return inner && inner->is_structured() ? std::move(*inner) : value;
}

const char* kind_name(const RecordJson& value) {
  return value.is_binary() ? "number" : value.type_name();
}

}  // namespace jackscrew
