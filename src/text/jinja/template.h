// Chat templates: the subset of Jinja that models use, rendered as transformers does.
//
// docs/chat_templates.md lists what is covered. The output is that of Python's jinja2 as
// transformers configures it; anything not covered is refused with its line.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "text/jinja/interpreter.h"

namespace jackscrew::jinja {

// An Error(model): a value is missing, or is not what the template takes it for. With other values
// the template may be rendered.
class UnfitValues : public Error {
 public:
  explicit UnfitValues(const std::string& what, std::string hint = {})
      : Error(ErrorKind::model, what, std::move(hint)) {}
};

// Immutable; render() is thread-safe.
class Template {
 public:
  // Throws Error(model) naming line and construct.
  static Template parse(std::string_view source);

  // Returns what the template writes. A pure function: strftime_now sees `now`. Throws Error(data)
  // where the template refuses the conversation by raise_exception, UnfitValues, and Error(model)
  // where the template itself is at fault; all name the line.
  Text render(const Variables& variables, const DateTime& now) const;

  // Whether the template contains {% generation %}, which then decides what is trained.
  bool has_generation() const { return has_generation_; }
  // Whether a word occurs in it, as a name or a text.
  bool mentions(std::string_view word) const { return words_.contains(word); }
  // Whether the result may depend on the clock.
  bool uses_clock() const { return mentions("strftime_now"); }

 private:
  Template() = default;

  std::shared_ptr<const Block> block_;
  bool has_generation_ = false;
  std::set<std::string, std::less<>> words_;  // names and texts
};

}  // namespace jackscrew::jinja
