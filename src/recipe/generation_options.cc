#include "recipe/generation_options.h"

#include "base/error.h"

namespace jackscrew {

namespace {

using enum OptionType;

constexpr OptionSpec kGenerationOptions[] = {
    {.name = "prompt",
     .type = text,
     .default_text = "",
     .help = "text to continue or question to answer; - or none: read from standard input",
     .affects_result = false},
    {.name = "system",
     .type = text,
     .default_text = "",
     .help = "system prompt",
     .affects_result = false},
    {.name = "context",
     .type = integer,
     .default_text = "2048",
     .help = "context window of a chat, in tokens; at most the model's own",
     .min = 16,
     .max = 16777216,
     .affects_result = false},
    {.name = "max_new_tokens",
     .type = integer,
     .default_text = "128",
     .help = "maximum length of an answer, in tokens",
     .min = 1,
     .max = 16777216,
     .affects_result = false},
    {.name = "temperature",
     .type = number,
     .default_text = "0",
     .help = "sampling temperature; 0: greedy, always the likeliest token",
     .min = 0,
     .affects_result = false},
    {.name = "top_k",
     .type = integer,
     .default_text = "0",
     .help = "sample from the k likeliest tokens; 0: all",
     .min = 0,
     .affects_result = false},
    {.name = "top_p",
     .type = number,
     .default_text = "1",
     .help =
         "sample from the likeliest tokens whose probabilities add up to this (nucleus sampling)",
     .min = 0,
     .max = 1,
     .affects_result = false},
    {.name = "min_p",
     .type = number,
     .default_text = "0",
     .help = "sample from tokens at least this probable, as a share of the likeliest's probability",
     .min = 0,
     .max = 1,
     .affects_result = false},
    {.name = "repetition_penalty",
     .type = number,
     .default_text = "1",
     .help = "logits of tokens that the text has, prompt included: divided by this where they are "
             "positive, else multiplied by it, but for those that end answers; 1: as they are",
     .min = 0.01,
     .max = 100,
     .affects_result = false},
};

}  // namespace

std::span<const OptionSpec> generation_options() {
  return kGenerationOptions;
}

void GenerationSettings::read(const OptionSet& options) {
  prompt = options.text("prompt");
  system = options.text("system");
  context = options.integer("context");
  max_new_tokens = options.integer("max_new_tokens");
  temperature = options.number("temperature");
  top_k = options.integer("top_k");
  top_p = options.number("top_p");
  min_p = options.number("min_p");
  repetition_penalty = options.number("repetition_penalty");
  if (top_p > 0) return;
  throw Error(ErrorKind::usage, "top_p is 0, no token could be sampled", "1 means all tokens");
}

}  // namespace jackscrew
