// Chat templates: the subset of Jinja that models write theirs in, rendered as transformers does.
//
// docs/chat_templates.md lists what is covered. The output is that of Python's jinja2 as
// transformers sets it up; whatever is not covered is refused with its line.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "text/jinja/interpreter.h"

namespace jackscrew::jinja {

// Immutable: render() may be called by several threads at once.
class Template {
 public:
  // Throws Error(model), naming line and construct.
  static Template parse(std::string_view source);

  // What the template writes. A pure function: `now` is what strftime_now sees. Throws Error(data)
  // where the template refuses the conversation by raise_exception, otherwise Error(model); both
  // name the line.
  Text render(const Variables& variables, const DateTime& now) const;

  // Whether {% generation %} occurs: then that is what is trained.
  bool has_generation() const { return has_generation_; }
  // Whether a word stands in it, as a name or a text.
  bool mentions(std::string_view word) const { return words_.contains(word); }
  // Whether the clock may matter.
  bool uses_clock() const { return mentions("strftime_now"); }

 private:
  Template() = default;

  std::shared_ptr<const Block> block_;
  bool has_generation_ = false;
  std::set<std::string, std::less<>> words_;  // names and texts
};

}  // namespace jackscrew::jinja
