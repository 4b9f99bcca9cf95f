#include "base/regular_expression.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/error.h"

namespace jackscrew {

namespace {

// Far beyond what a pattern for names needs, and a fraction of a second.
constexpr uint32_t kMatchLimit = 1'000'000;

PCRE2_SPTR bytes_of(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

RegularExpression::RegularExpression(const std::string& pattern) : pattern_(pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(bytes_of(pattern), pattern.size(),
                                   PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &offset, nullptr);
  if (code == nullptr) {
    throw Error(ErrorKind::usage,
                fmt::format("\"{}\" is not a regular expression: {}, at character {}", pattern,
                            pcre2_message(error), offset + 1),
                "as Python's: .*layers\\.[0-3]\\..*q_proj");
  }
  code_ = {code, [](pcre2_code* compiled) { pcre2_code_free(compiled); }};
}

bool RegularExpression::is_whole(std::string_view text) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
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
