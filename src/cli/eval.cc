#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "cli/arguments.h"
#include "train/evaluate.h"
#include "train/export.h"
#include "train/fit.h"
#include "train/loading.h"

namespace jackscrew {

namespace {

int score(const Recipe& given) {
  Recipe recipe = with_adapter_options(given);
  recipe.options.require("model", "eval");
  recipe.options.require("data", "eval");
  const ModelFiles files = open_model(recipe.model);
  require_weights(recipe, files);
  settle_lengths(recipe, files.config);
  const Tokenizer tokenizer = make_tokenizer(recipe.tokenizer, files);
  DatasetOptions options = dataset_options(recipe, tokenizer);
  options.stride = recipe.stride;
  const ProgressStyle style = stderr_style(recipe.quiet);
  const Dataset data = load_dataset(recipe.data, tokenizer, options, style);
  // Records are scored side by side; 2048 tokens fill the products, and more would only take
  // memory.
  constexpr int64_t kTokens = 2048;
  const int64_t tokens = std::max(recipe.sequence_len, kTokens);
  const SessionUse use{.training = false,
                       .tokens = tokens,
                       .max_positions = recipe.sequence_len,
                       .kv_tokens = 0,
                       .logits_rows = 0};
  const SessionPlan plan = Session::rehearse(recipe, files, use);
  require_fit(recipe, files, use, plan);
  const auto session = load_session(recipe, files, use, plan, style);
  const EvalResult result = evaluate(*session, data, tokens, style);
  if (!std::isfinite(result.loss)) {
    throw Error(ErrorKind::non_finite, fmt::format("the loss of {} is not finite", recipe.model),
                "its weights are damaged, or too large for this product; try product=f32");
  }
  if (recipe.json) {
    fmt::print("{}\n", result.to_json());
  } else {
    fmt::print("loss {:.4f}  perplexity {:.2f}  bits/byte {:.4f}  ({}, {})\n", result.loss,
               result.perplexity, result.bits_per_byte, counted(result.tokens, "token"),
               counted(result.records, "record"));
  }
  return 0;
}

}  // namespace

int run_eval(Arguments arguments) {
  return with_recipe(arguments, 0, "eval", score);
}

}  // namespace jackscrew
