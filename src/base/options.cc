#include "base/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/list_text.h"
#include "base/text.h"

namespace jackscrew {

namespace {

std::string join(std::span<const std::string> parts, const char* separator) {
  std::string out;
  for (const std::string& part : parts) {
    if (!out.empty()) out += separator;
    out += part;
  }
  return out;
}

OptionValue default_value(const OptionSpec& spec, size_t table) {
  OptionValue value;
  value.spec = spec;
  value.table = table;
  value.text = spec.default_text;
  if (spec.type == OptionType::list) value.items = list_items(value.text);
  return value;
}

// The system would take a path only up to there.
void refuse_nul(const Assignment& assignment, const OptionSpec& spec) {
  const auto has_nul = [](const std::string& text) { return text.find('\0') != text.npos; };
  const bool in_items =
      assignment.items && std::any_of(assignment.items->begin(), assignment.items->end(), has_nul);
  if (!in_items && !has_nul(assignment.text)) return;
  throw Error(ErrorKind::usage,
              fmt::format("{}: {} has a character that is 0", assignment.origin, spec.name),
              "leave it out: \"\\0\" in YAML is such a character");
}

}  // namespace

std::vector<Assignment> split_settings(std::string_view text, std::string_view origin) {
  std::vector<Assignment> out;
  for (const std::string& setting : split_words(text)) {
    const size_t equals = setting.find('=');
    out.push_back({setting.substr(0, equals), setting.substr(equals + 1), std::string(origin), {}});
  }
  return out;
}

bool same_value(const OptionValue& a, const OptionValue& b) {
  if (a.text == b.text) return true;
  const auto same = [&](const auto& parse) {
    const auto value = parse(a.text);
    return value && value == parse(b.text);
  };
  switch (a.spec.type) {
    case OptionType::text:
    case OptionType::list:
      return false;
    case OptionType::integer:
      return same(parse_int);
    case OptionType::number:
      return same(parse_double);
    case OptionType::boolean:
      return same(parse_bool);
    case OptionType::bytes:
      return same(parse_bytes);
  }
  return false;
}

std::string yaml_scalar(std::string_view text, bool is_text) {
  bool plain = !text.empty();
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool safe = std::isalnum(c) != 0 || c == '_' || c == '.' || c == '/';
    plain = plain && (safe || (i > 0 && (c == '-' || c == '+')));
  }
  for (const char* null : {"null", "Null", "NULL"}) plain = plain && text != null;
  // Readers of YAML 1.1 take these for truth values, numbers and dates.
  constexpr const char* kTyped = "y n yes no on off true false .inf .nan";
  if (is_text && plain) {
    plain =
        std::isdigit(text[0]) == 0 && !parse_double(text) && !has_name(kTyped, lower_case(text));
  }
  if (plain && text.find("...") != 0) return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

void OptionSet::add(const OptionTable& table) {
  for (const OptionSpec& spec : table.options) {
    auto names = split_words(spec.aliases);
    names.insert(names.begin(), spec.name);
    for (const std::string& name : names) {
      if (!index_.emplace(canonical_name(name), values_.size()).second) {
        fail(ErrorKind::generic, "option {} is declared twice, the second time in \"{}\"", name,
             table.title);
      }
    }
    OptionValue value = default_value(spec, tables_.size());
    if (!value.text.empty()) {
      const bool valid = spec.type == OptionType::list
                             ? std::all_of(value.items.begin(), value.items.end(),
                                           [&](const auto& i) { return is_valid_item(spec, i); })
                             : is_valid_item(spec, value.text);
      if (!valid) {
        fail(ErrorKind::generic, "option {} has the default \"{}\", which is not {}", spec.name,
             value.text, expected_value(spec));
      }
    }
    values_.push_back(std::move(value));
  }
  tables_.push_back(table);
}

std::vector<std::string> OptionValue::parts() const {
  return spec.type == OptionType::list ? items : std::vector{text};
}

const char* OptionSet::explanation(std::string_view name, std::string_view text) const {
  const ForeignName* foreign = find_row(foreign_, name);
  if (foreign == nullptr) return nullptr;
  return foreign->is_switch && parse_bool(text) == false ? "leave it out" : foreign->hint;
}

const OptionValue& OptionSet::at(std::string_view name, std::string_view origin,
                                 std::string_view text) const {
  if (const OptionValue* value = find(name)) return *value;
  const std::string what = fmt::format("{}: unknown option \"{}\"", origin, name);
  if (const char* hint = explanation(name, text)) throw Error(ErrorKind::usage, what, hint);
  // As argparse has it. Its near name would do the opposite.
  constexpr std::string_view kNo = "no_";
  const std::string canonical = canonical_name(name);
  const bool is_denied = canonical.starts_with(kNo);
  const OptionValue* denied = is_denied ? find(canonical.substr(kNo.size())) : nullptr;
  if (denied != nullptr && denied->spec.type == OptionType::boolean) {
    throw Error(ErrorKind::usage, what,
                fmt::format("{}={}", denied->spec.name, parse_bool(text) == false));
  }
  const std::string near = near_name_hint(name);
  throw Error(ErrorKind::usage, what,
              near.empty() ? "--help after a command lists its options" : near);
}

std::string OptionSet::near_name_hint(std::string_view name) const {
  std::vector<std::string> names;
  for (const auto& [known, position] : index_) names.push_back(known);
  const auto nearest = nearest_name(canonical_name(name), names);
  return nearest ? fmt::format("did you mean {}?", *nearest) : "";
}

void OptionSet::set(const Assignment& assignment) {
  at(assignment.name, assignment.origin, assignment.text);
  OptionValue& value = value_of(assignment.name);
  const OptionSpec& spec = value.spec;
  refuse_nul(assignment, spec);
  const auto explained = [&](const std::string& text) {
    return explanation(fmt::format("{}={}", spec.name, text));
  };
  const auto refuse = [&](const std::string& text) {
    refuse_value(spec, text, assignment.origin, explained(text));
  };
  if (spec.type == OptionType::list) {
    auto items = assignment.items ? *assignment.items : list_items(assignment.text);
    for (const std::string& item : items) {
      if (!is_valid_item(spec, item)) refuse(item);
    }
    value.text = list_text(items);
    value.items = std::move(items);
  } else {
    if (assignment.items) {
      refuse(fmt::format("[{}]", join(*assignment.items, ", ")));
    }
    // Text may always be emptied: that is how a recipe's value is taken back on the command line.
    const bool emptied =
        spec.type == OptionType::text && assignment.text.empty() && *spec.default_text == '\0';
    // Free text would take the values of other programs, too.
    const bool is_free = spec.type == OptionType::text && *spec.choices == '\0';
    const bool is_foreign = is_free && explained(assignment.text) != nullptr;
    if (!emptied && (is_foreign || !is_valid_item(spec, assignment.text))) {
      refuse(assignment.text);
    }
    value.text = assignment.text;
  }
  value.explicitly_set = true;
  value.origin = assignment.origin;
}

void OptionSet::set(std::string_view name, std::string_view text, std::string_view origin) {
  set(Assignment{std::string(name), std::string(text), std::string(origin), std::nullopt});
}

void OptionSet::forget(std::string_view name) {
  OptionValue& value = value_of(name);
  value = default_value(value.spec, value.table);
}

void OptionSet::imply(std::string_view name, std::string_view text, std::string_view origin) {
  if (at(name, origin).explicitly_set) return;
  set(name, text, origin);
  value_of(name).explicitly_set = false;
}

void OptionSet::require(std::string_view name, std::string_view reader) const {
  const OptionValue& value = get(name);
  if (!value.text.empty()) return;
  throw Error(ErrorKind::usage, fmt::format("{} needs {}", reader, value.spec.name),
              fmt::format("give {}=... ({})", value.spec.name, value.spec.help));
}

const OptionValue* OptionSet::find(std::string_view name) const {
  const auto found = index_.find(canonical_name(name));
  return found == index_.end() ? nullptr : &values_[found->second];
}

const OptionValue& OptionSet::get(std::string_view name) const {
  const OptionValue* value = find(name);
  if (value == nullptr) fail(ErrorKind::generic, "no option {} has been declared", name);
  return *value;
}

const OptionValue& OptionSet::get(std::string_view name, OptionType type) const {
  const OptionValue& value = get(name);
  if (value.spec.type != type) {
    fail(ErrorKind::generic, "option {} is read as another type than it was declared", name);
  }
  if (type != OptionType::list && (value.text.empty() || is_word(name))) {
    fail(ErrorKind::generic, "option {} is \"{}\", which has no value of its type", name,
         value.text);
  }
  return value;
}

OptionValue& OptionSet::value_of(std::string_view name) {
  return values_[static_cast<size_t>(&get(name) - values_.data())];
}

const std::string& OptionSet::text(std::string_view name) const {
  return get(name).text;
}

int64_t OptionSet::integer(std::string_view name) const {
  return parse_int(get(name, OptionType::integer).text).value();
}

double OptionSet::number(std::string_view name) const {
  return parse_double(get(name, OptionType::number).text).value();
}

bool OptionSet::boolean(std::string_view name) const {
  return parse_bool(get(name, OptionType::boolean).text).value();
}

int64_t OptionSet::bytes(std::string_view name) const {
  return parse_bytes(get(name, OptionType::bytes).text).value();
}

const std::vector<std::string>& OptionSet::list(std::string_view name) const {
  return get(name, OptionType::list).items;
}

namespace {

// The items of a list by `parse`, which returns nullopt for what is not `expected`.
template <class Value, class Parse>
std::vector<Value> items_of(const OptionValue& option, const std::string& expected,
                            const char* hint, const Parse& parse) {
  std::vector<Value> values;
  for (const std::string& item : option.items) {
    const std::optional<Value> value = parse(item);
    if (!value) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} has \"{}\", expected {}", option.origin, option.spec.name,
                              item, expected),
                  hint);
    }
    values.push_back(*value);
  }
  return values;
}

std::optional<int64_t> positive(std::optional<int64_t> number) {
  return number && *number >= 1 ? number : std::nullopt;
}

// No list counts more of anything, and no sum of so many overflows.
constexpr int64_t kMostCounted = 1'000'000;

}  // namespace

std::vector<int64_t> OptionSet::whole_numbers(std::string_view name) const {
  return items_of<int64_t>(get(name, OptionType::list),
                           fmt::format("whole numbers from 1 to {}", kMostCounted), "",
                           [](const std::string& item) {
                             const auto number = positive(parse_int(item));
                             return number.value_or(0) <= kMostCounted ? number : std::nullopt;
                           });
}

std::vector<double> OptionSet::numbers(std::string_view name, double least, double most,
                                       const char* hint) const {
  return items_of<double>(get(name, OptionType::list),
                          fmt::format("numbers from {} to {}", least, most), hint,
                          [&](const std::string& item) -> std::optional<double> {
                            const auto number = parse_double(item);
                            if (!number || !(*number >= least && *number <= most)) return {};
                            return number;
                          });
}

std::vector<int64_t> OptionSet::sizes(std::string_view name) const {
  return items_of<int64_t>(get(name, OptionType::list), "sizes with a unit, such as 16GiB", "",
                           [](const std::string& item) { return positive(parse_bytes(item)); });
}

std::optional<int64_t> OptionSet::integer_unless_word(std::string_view name) const {
  if (is_word(name)) return std::nullopt;
  return integer(name);
}

std::optional<int64_t> OptionSet::bytes_unless_word(std::string_view name) const {
  if (is_word(name)) return std::nullopt;
  return bytes(name);
}

bool OptionSet::was_set(std::string_view name) const {
  return get(name).explicitly_set;
}

bool OptionSet::is_changed(std::string_view name) const {
  const OptionValue& option = get(name);
  OptionValue unset = option;
  unset.text = option.spec.default_text;
  return option.explicitly_set && !same_value(option, unset);
}

bool OptionSet::asks_for(std::string_view name) const {
  const OptionValue& option = get(name);
  return option.explicitly_set && (option.origin == kCommandLine || is_changed(name));
}

bool OptionSet::is_word(std::string_view name) const {
  const OptionValue& value = get(name);
  if (value.spec.type == OptionType::text || value.spec.type == OptionType::list) return false;
  return is_choice(value.spec, value.text);
}

const std::string& OptionSet::origin(std::string_view name) const {
  return get(name).origin;
}

std::string OptionSet::to_yaml(std::span<const std::string> skipped_titles) const {
  std::string out;
  for (size_t table = 0; table < tables_.size(); ++table) {
    const bool skipped = std::find(skipped_titles.begin(), skipped_titles.end(),
                                   tables_[table].title) != skipped_titles.end();
    if (skipped || !tables_[table].saved || tables_[table].options.empty()) continue;
    out += fmt::format("{}# {}\n", out.empty() ? "" : "\n", tables_[table].title);
    for (const OptionValue& value : values_) {
      if (value.table != table) continue;
      std::string shown;
      if (value.spec.type == OptionType::list) {
        std::vector<std::string> quoted;
        for (const std::string& item : value.items) quoted.push_back(yaml_scalar(item));
        shown = fmt::format("[{}]", join(quoted, ", "));
      } else if (!value.text.empty()) {
        shown = yaml_scalar(value.text, value.spec.type == OptionType::text);
      }
      out += fmt::format("{:<38} # {}\n", fmt::format("{}: {}", value.spec.name, shown),
                         value.spec.help);
    }
  }
  return out;
}

}  // namespace jackscrew
