// Parses tokens into a syntax tree, by jinja2's grammar.
#pragma once

#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace jackscrew::jinja {

// Throws SyntaxFailure where jinja2 would, and for constructs outside of this subset.
Block parse(std::vector<Token> tokens);

}  // namespace jackscrew::jinja
