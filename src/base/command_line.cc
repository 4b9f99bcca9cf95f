#include "base/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace jackscrew {

namespace {

// Whether `text` can be the name in `name=value`; a path with `=` in it usually cannot.
bool is_name(std::string_view text) {
  if (text.empty() || std::isalpha(static_cast<unsigned char>(text.front())) == 0) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
  });
}

// Whether `text`, written after `--name` of a boolean, is its value and not the next operand.
bool is_boolean_value(const OptionSpec& spec, const std::string& text) {
  const auto words = split_words(spec.choices);
  return parse_bool(text) || std::find(words.begin(), words.end(), text) != words.end();
}

// A later value is an override only where the same name says so again: whoever writes two names of
// one option takes them for two options.
void refuse_two_names(std::span<const Assignment> assignments, const OptionSet& known) {
  std::map<std::string_view, std::string> given;  // by the option
  for (const Assignment& assignment : assignments) {
    const OptionValue* option = known.find(assignment.name);
    if (option == nullptr) continue;
    const auto [first, is_new] = given.emplace(option->spec.name, assignment.name);
    if (is_new || has_name(first->second, assignment.name)) continue;
    throw Error(ErrorKind::usage,
                fmt::format("{}: {} and {} are two names of one option", kCommandLine,
                            first->second, assignment.name),
                fmt::format("leave one of them out; {} is its name here", option->spec.name));
  }
}

}  // namespace

CommandLine parse_command_line(std::span<const std::string> arguments, const OptionSet& known) {
  CommandLine out;
  const auto assign = [&](std::string_view name, std::string_view text) {
    out.assignments.push_back(
        Assignment{std::string(name), std::string(text), kCommandLine, std::nullopt});
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    const size_t equals = argument.find('=');
    if (argument == "--") {
      out.operands.insert(out.operands.end(), arguments.begin() + static_cast<ptrdiff_t>(i) + 1,
                          arguments.end());
      break;
    }
    if (!argument.starts_with("-") || argument == "-") {
      if (equals != std::string_view::npos && is_name(argument.substr(0, equals))) {
        assign(argument.substr(0, equals), argument.substr(equals + 1));
      } else {
        out.operands.emplace_back(argument);
      }
      continue;
    }
    if (!argument.starts_with("--")) {
      throw Error(ErrorKind::usage, fmt::format("unknown option {}", argument),
                  "options are written name=value or --name value");
    }
    const std::string_view body = argument.substr(2);
    if (equals != std::string_view::npos) {
      assign(body.substr(0, equals - 2), body.substr(equals - 1));
      continue;
    }
    // An unknown name is refused right here: whether the next argument is its value is not known.
    const bool has_next = i + 1 < arguments.size();
    const std::string next = has_next ? arguments[i + 1] : std::string();
    const OptionSpec& spec = known.at(body, kCommandLine, next).spec;
    if (spec.type == OptionType::boolean) {
      const bool takes_next = has_next && is_boolean_value(spec, next);
      assign(body, takes_next ? arguments[++i] : "true");
    } else if (has_next && !next.starts_with("--")) {
      assign(body, arguments[++i]);
    } else {
      throw Error(ErrorKind::usage, fmt::format("{} needs a value", argument),
                  fmt::format("expected {}", expected_value(spec)));
    }
  }
  refuse_two_names(out.assignments, known);
  return out;
}

}  // namespace jackscrew
