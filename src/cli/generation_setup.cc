#include "cli/generation_setup.h"

#include <fmt/format.h>

#include <unistd.h>

#include "base/text.h"
#include "cli/arguments.h"
#include "data/encode_records.h"
#include "session/adapter.h"
#include "session/loading.h"
#include "session/plan.h"

namespace jackscrew {

namespace {

Recipe checked(const Recipe& given, const char* command) {
  Recipe recipe = with_adapter_options(given);
  recipe.options.require("model", command);
  return recipe;
}

}  // namespace

GenerationSetup::GenerationSetup(const Recipe& given, const char* command)
    : recipe(checked(given, command)),
      files(open_model(recipe.model, recipe.adapter, recipe.tokenizer)),
      tokenizer(make_tokenizer(recipe.tokenizer, files)),
      format(recipe_chat_format(recipe, tokenizer)) {
  require_weights(recipe, files);
  if (recipe.temperature == 0.0) {
    for (const char* name : {"top_k", "top_p", "min_p", "seed"}) {
      const bool draws_weights = recipe.random_init && name == std::string_view("seed");
      if (draws_weights || recipe.options.origin(name) != kCommandLine) continue;
      warn(
          fmt::format("{} does nothing at temperature=0, which takes the likeliest token; set "
                      "temperature, such as 0.8",
                      name));
    }
  }
  options.sampling = {recipe.temperature, recipe.top_k, recipe.top_p, recipe.min_p, recipe.seed};
  options.repetition_penalty = recipe.repetition_penalty;
  options.max_new_tokens = recipe.max_new_tokens;
  options.end_tokens = end_tokens(tokenizer, files);
  options.vocab_size = drawable_tokens(tokenizer);
  if (!recipe.adapter.empty()) virtual_tokens = jackscrew::virtual_tokens(recipe);
  longest_text = files.config.longest_sequence() - virtual_tokens;
}

void check_piped(const std::string& text, size_t more, const char* what) {
  constexpr size_t kMost = size_t{64} << 20;  // bytes: more than any context
  if (text.size() + more > kMost) {
    throw Error(ErrorKind::usage,
                fmt::format("the {} on standard input is longer than 64 MiB", what),
                "no model reads that much at once");
  }
  if (text.size() + more <= text.capacity()) return;
  // Moving it, which takes up to twice as much, and a copy of it take less than that.
  require_memory_to_encode(text.size(), TextForm::document,
                           fmt::format("a shorter {} takes less", what));
}

double token_rate(int64_t tokens, double seconds) {
  return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
}

std::string_view what_ended(const Generation& answer, int64_t max_new_tokens, bool interrupted) {
  if (answer.ended) return "model";
  if (std::ssize(answer.ids) >= max_new_tokens) return "max_new_tokens";
  return interrupted ? "interrupt" : "context";
}

const char* what_stopped(std::string_view ended) {
  if (ended == "max_new_tokens") return "; stopped at max_new_tokens";
  return ended == "context" ? "; stopped: the context is full" : "";
}

std::string rate_text(const Generation& answer) {
  const auto rate = answer.decode_rate();
  return rate ? fmt::format(", {:.1f} tok/s", *rate) : "";
}

void print_piece(const std::string& text) {
  if (text.empty()) return;
  // Generated text is not trusted: it must not control the terminal.
  fmt::print("{}", ::isatty(STDOUT_FILENO) == 1 ? without_controls(text) : text);
  flush_output();
}

}  // namespace jackscrew
