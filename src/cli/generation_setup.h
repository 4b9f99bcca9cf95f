// What `generate` and `chat` begin with.
#pragma once

#include "generation/generate.h"
#include "recipe/recipe.h"
#include "session/model_files.h"

namespace jackscrew {

struct GenerationSetup {
  // Throws Error(usage) when the recipe names no model, or one without weights; `command` says who
  // needs it.
  GenerationSetup(const Recipe& given, const char* command);

  Recipe recipe;
  ModelFiles files;
  Tokenizer tokenizer;
  ChatFormat format;
  GenerationOptions options;  // max_new_tokens as the recipe has it
};

// Tokens a second; 0 when no time has passed.
double token_rate(int64_t tokens, double seconds);

// To stdout, at once; on a terminal without control characters but line feeds and tabs.
void print_piece(const std::string& text);

}  // namespace jackscrew
