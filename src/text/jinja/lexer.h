// Splits a template into tokens, by the rules of jinja2's lexer with trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace jackscrew::jinja {

struct Token {
  enum class Kind : uint8_t {
    data,         // text outside of tags
    print_begin,  // {{
    print_end,    // }}
    block_begin,  // {%
    block_end,    // %}
    name,
    string,
    integer,
    floating,
    symbol,  // an operator, a bracket, a comma ...
    end      // of the template
  };

  Kind kind = Kind::end;
  int line = 1;
  std::string text;  // of data, name, symbol; of a string with its escapes resolved
  int64_t integer = 0;
  double floating = 0.0;

  bool is(std::string_view symbol) const { return kind == Kind::symbol && text == symbol; }
  bool is_name(std::string_view name) const { return kind == Kind::name && text == name; }
  // For messages: "\"for\"", "%}", "the end of the template".
  std::string describe() const;
};

// The last token is of kind `end`. Throws SyntaxFailure.
std::vector<Token> tokenize(std::string_view source);

}  // namespace jackscrew::jinja
