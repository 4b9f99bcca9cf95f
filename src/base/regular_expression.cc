#include "base/regular_expression.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/error.h"

namespace jackscrew {

namespace {

// Far beyond what a pattern for names needs, and a fraction of a second.
constexpr uint32_t kMatchLimit = 1'000'000;

constexpr const char* kAsPythons = "as Python's: .*layers\\.[0-3]\\..*q_proj";

PCRE2_SPTR bytes_of(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

// What Python's re and PCRE2 read alike, piece by piece (PCRE2_EXTENDED). Others are read otherwise
// or not at all: {,3}, [[:alpha:]], (?<name>), \Q, \z, (?i) behind the beginning. Only references
// to groups that are open, or come later, pass here and not in Python.
constexpr std::string_view kSharedSyntax = R"(
  (?(DEFINE)
    (?<escape> \\ (?: [dDsSwWnrtf] | x [0-9A-Fa-f]{2} | [^A-Za-z0-9] ) )
    (?<class> \[ \^? \]? (?: (?&escape) | \\b | \[ (?![:.=]) | [^\]\[\\] )* \] )
    (?<anchor> \\[AbBZ] )
    (?<character> [^\\\[({*+?|] )
    (?<quantifier> (?: [*+?] | \{ [0-9]+ (?: ,[0-9]* )? \} ) [+?]? )
    (?<behind> \( \? < [=!] (?: (?&escape) | (?&class) | (?&anchor) | (?! \) ) (?&character) )* \) )
    (?<group> \( (?! [*?] )
            | \( \? (?: [:=!>] | P < [A-Za-z_] \w* > | P = \w+ \) | \( [0-9]+ \) | -? [ims]+ : ) )
  )
  (?: \( \? [ims]+ \) )?
  (?: (?&character) | (?&escape) | (?&class) | (?&anchor) | (?&quantifier) | (?&behind) | (?&group)
    | \| | \\ [1-9] (?! [0-9] ) )*+
)";

using Code = std::shared_ptr<pcre2_code>;

// Throws Error(usage) for an invalid pattern.
Code compiled(std::string_view pattern, uint32_t options) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(bytes_of(pattern), pattern.size(), options, &error, &offset, nullptr);
  if (code != nullptr) return {code, pcre2_code_free};
  throw Error(ErrorKind::usage,
              fmt::format("\"{}\" is not a regular expression: {}, at character {}", pattern,
                          pcre2_message(error), offset + 1),
              kAsPythons);
}

using MatchData = std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)>;

MatchData match_data(const pcre2_code* code) {
  return {pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free};
}

// The length of the beginning that both syntaxes share.
size_t shared_length(std::string_view pattern) {
  static const Code kShared = compiled(kSharedSyntax, PCRE2_ANCHORED | PCRE2_EXTENDED);
  const MatchData match = match_data(kShared.get());
  if (pcre2_match(kShared.get(), bytes_of(pattern), pattern.size(), 0, 0, match.get(), nullptr) < 0)
    return 0;
  return pcre2_get_ovector_pointer(match.get())[1];
}

}  // namespace

RegularExpression::RegularExpression(const std::string& pattern)
    : pattern_(pattern), code_(compiled(pattern, PCRE2_ANCHORED | PCRE2_ENDANCHORED)) {
  if (const size_t shared = shared_length(pattern); shared < pattern.size()) {
    throw Error(
        ErrorKind::usage,
        fmt::format("\"{}\" has what Python's re reads otherwise, or not at all: \"{}\", at "
                    "character {}",
                    pattern, pattern.substr(shared, 8), shared + 1),
        kAsPythons);
  }
}

bool RegularExpression::is_whole(std::string_view text) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const MatchData match = match_data(code);
  const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  const int found =
      pcre2_match(code, bytes_of(text), text.size(), 0, 0, match.get(), context.get());
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  throw Error(ErrorKind::usage,
              fmt::format("\"{}\" cannot be matched: {}", pattern_, pcre2_message(found)),
              "write a simpler regular expression");
}

std::string pcre2_message(int code) {
  std::array<char, 256> text{};
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
  return text.data();
}

}  // namespace jackscrew
