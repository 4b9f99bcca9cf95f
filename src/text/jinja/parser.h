// Tokens to a syntax tree, by jinja2's grammar.
#pragma once

#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace jackscrew::jinja {

// Throws SyntaxFailure: where jinja2 would, and for what this subset leaves out.
Block parse(std::vector<Token> tokens);

}  // namespace jackscrew::jinja
