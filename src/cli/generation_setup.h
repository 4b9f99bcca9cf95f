// The setup shared by `generate` and `chat`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "generation/generate.h"
#include "recipe/recipe.h"
#include "session/model_files.h"

namespace jackscrew {

struct GenerationSetup {
  // Throws Error(usage) when the recipe names no model, or one without weights; `command` is named
  // in errors.
  GenerationSetup(const Recipe& given, const char* command);

  Recipe recipe;
  ModelFiles files;
  Tokenizer tokenizer;
  ChatFormat format;
  GenerationOptions options;   // with the recipe's max_new_tokens
  int64_t virtual_tokens = 0;  // of a soft prompt, before every text
  int64_t longest_text = 0;    // the tokens that have positions after them
};

// Looks at a text on standard input, of which `text` has been read, before `more` bytes are added
// to it. Throws Error(usage) naming `what` it is where it is longer than any context,
// Error(does_not_fit) where a memory limit does not leave what encoding it takes.
void check_piped(const std::string& text, size_t more, const char* what);

// Tokens per second; 0 when no time has passed.
double token_rate(int64_t tokens, double seconds);
// What ended an answer, as JSON names it.
std::string_view what_ended(const Generation& answer, int64_t max_new_tokens, bool interrupted);
// What follows the numbers of an answer that `ended`, a name of what_ended(), has ended.
const char* what_stopped(std::string_view ended);
// ", 12.3 tok/s" behind an answer's length; empty where nothing was decoded.
std::string rate_text(const Generation& answer);

// Prints to stdout and flushes; on a terminal, without control characters except line feeds and
// tabs.
void print_piece(const std::string& text);

}  // namespace jackscrew
