// Patterns of tokenizer.json, which are written for Oniguruma, for PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace jackscrew {

// A pattern with which PCRE2 (UTF, UCP) matches what Oniguruma matches with `pattern`: the two mean
// different characters by \s, \w, \b, \h, \v, POSIX classes and the names of scripts, other places
// by ^ and $, and other things by options and by what follows {n,m}. Throws Error(model) for what
// has no counterpart. Parts that are no valid pattern are left for PCRE2 to
// refuse.
std::string pcre2_pattern(std::string_view pattern);

}  // namespace jackscrew
