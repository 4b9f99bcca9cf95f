// Named, typed options: tables that declare what may be set, and a set of values with their
// origins. Nothing here knows a particular option; whoever reads an option declares it in a table
// of its own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/option_spec.h"

namespace jackscrew {

// Options that belong together, under a heading of the help and of the dump.
struct OptionTable {
  std::string title;
  std::span<const OptionSpec> options;
  bool saved = true;  // false: about one call of the program only, absent from dumps
};

// A name that other programs have for what is called differently here: an option, a value of one
// ("option=value") or a method. It is not accepted, but the error says what to write.
struct ForeignName {
  const char* names;  // separated by spaces
  const char* hint;
  bool is_switch = false;  // asks for something where it is true, and where false for nothing
};

// The origin of values from the arguments of the program.
inline constexpr const char* kCommandLine = "command line";

// A value that someone gave to an option, before it is checked.
struct Assignment {
  std::string name;                               // or an alias
  std::string text;                               // unless `items` is given
  std::string origin;                             // for messages: "run.yaml:3", kCommandLine
  std::optional<std::vector<std::string>> items;  // written as a list
};

// An option as a table gives it, with its present value.
struct OptionValue {
  OptionSpec spec;
  size_t table = 0;                // index into OptionSet::tables()
  std::string text;                // lists: items joined by commas
  std::vector<std::string> items;  // lists only
  bool explicitly_set = false;
  std::string origin = "default";

  // The items of a list; else the text alone.
  std::vector<std::string> parts() const;
};

class OptionSet {
 public:
  // Adds a table; every option starts with its default. Throws Error(generic) when a name or an
  // alias is taken already, or a default is not valid.
  void add(const OptionTable& table);

  // Sets the names that errors about unknown options explain. They must outlive the set.
  void explain(std::span<const ForeignName> names) { foreign_ = names; }
  // The hint for such a name with the value `text`; nullptr where there is none.
  const char* explanation(std::string_view name, std::string_view text = {}) const;

  // Sets an option; a later call wins. `-` and `_` in names are the same. Throws Error(usage) for
  // an unknown name (with the nearest one as hint) and for a value that the option does not allow,
  // that has a NUL, or that explain() has, naming the option, the value, what is expected, and
  // `origin`.
  void set(std::string_view name, std::string_view text, std::string_view origin);
  void set(const Assignment& assignment);

  // Gives an option its default again, as if nobody had set it.
  void forget(std::string_view name);

  // Like set(), but only where nobody has set the option, and it still counts as not set
  // explicitly.
  void imply(std::string_view name, std::string_view text, std::string_view origin);

  // Throws Error(usage) unless the option has a value; `reader` (a command) says who needs it.
  void require(std::string_view name, std::string_view reader) const;

  // Values. Throw Error(generic) for an unknown name, another type, or no value of the type (empty,
  // or one of the extra words: ask is_word() first).
  const std::string& text(std::string_view name) const;  // of any type, as written
  int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;
  bool boolean(std::string_view name) const;
  int64_t bytes(std::string_view name) const;
  const std::vector<std::string>& list(std::string_view name) const;
  // The items of a list. Throw Error(usage) for one that is no whole number from 1 to a million, no
  // number from `least` to `most`, or no number of bytes with a unit.
  std::vector<int64_t> whole_numbers(std::string_view name) const;
  std::vector<double> numbers(std::string_view name, double least, double most,
                              const char* hint) const;
  std::vector<int64_t> sizes(std::string_view name) const;
  // nullopt where is_word().
  std::optional<int64_t> integer_unless_word(std::string_view name) const;
  std::optional<int64_t> bytes_unless_word(std::string_view name) const;

  bool was_set(std::string_view name) const;  // someone called set()
  // Whether somebody set it to another value than its default, with which recipes name options,
  // too.
  bool is_changed(std::string_view name) const;
  // Whether somebody asks for what the option says: sets it on the command line, or anywhere to
  // another value than its default. A recipe of all options, as runs leave them, asks for no
  // default.
  bool asks_for(std::string_view name) const;
  bool is_word(std::string_view name) const;  // holds one of the words beside its type's values
  const std::string& origin(std::string_view name) const;

  // The option of that name or alias; nullptr when there is none.
  const OptionValue* find(std::string_view name) const;
  // For a name that no option has: "did you mean NAME?", or empty where none is near.
  std::string near_name_hint(std::string_view name) const;
  // As find(), but throws the Error(usage) of set() when there is none; `text` is the value for it.
  const OptionValue& at(std::string_view name, std::string_view origin,
                        std::string_view text = {}) const;

  const std::vector<OptionTable>& tables() const { return tables_; }
  const std::vector<OptionValue>& values() const { return values_; }  // in table order

  // All values as YAML that reads back to the same values: in table order, the help as comments,
  // without the tables that are not saved or whose title is in `skipped_titles`.
  std::string to_yaml(std::span<const std::string> skipped_titles = {}) const;

 private:
  const OptionValue& get(std::string_view name) const;
  const OptionValue& get(std::string_view name, OptionType type) const;
  // Like get(), to be changed.
  OptionValue& value_of(std::string_view name);

  std::vector<OptionTable> tables_;
  std::vector<OptionValue> values_;
  std::span<const ForeignName> foreign_;
  std::map<std::string, size_t, std::less<>> index_;  // names and aliases -> values_
};

// Whether both hold the same value, however it is written: 1e-4 and 0.0001.
bool same_value(const OptionValue& a, const OptionValue& b);

// Settings separated by single spaces: "name=value name=value".
std::vector<Assignment> split_settings(std::string_view text, std::string_view origin);

// `text` as a YAML scalar, quoted where it must be; with `is_text` also where a reader might take
// it for another type.
std::string yaml_scalar(std::string_view text, bool is_text = false);

}  // namespace jackscrew
