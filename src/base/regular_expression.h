// Regular expressions, in the syntax that Python's `re` and PCRE2 share: what PEFT reads in an
// adapter's file means the same here.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace jackscrew {

class RegularExpression {
 public:
  // Throws Error(usage) for a pattern that is invalid or that Python reads otherwise, saying what
  // is wrong and where.
  explicit RegularExpression(const std::string& pattern);

  // Whether the pattern matches the whole of `text`. Throws Error(usage) if that takes too long to
  // find out.
  bool is_whole(std::string_view text) const;

 private:
  std::string pattern_;
  std::shared_ptr<const void> code_;  // compiled
};

// What PCRE2 says of an error.
std::string pcre2_message(int code);

}  // namespace jackscrew
