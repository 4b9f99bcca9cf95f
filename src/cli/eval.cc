#include <algorithm>

#include "cli/arguments.h"
#include "train/evaluate.h"
#include "train/export.h"

namespace jackscrew {

int run_eval(Arguments arguments) {
  const Recipe recipe = with_adapter_options(read_arguments(arguments, 0, "eval"));
  recipe.options.require("model", "eval");
  recipe.options.require("data", "eval");
  const ModelFiles files = open_model(recipe.model);
  const Tokenizer tokenizer = make_tokenizer(recipe.tokenizer, files);
  const Dataset data = Dataset::read(recipe.data, tokenizer, dataset_options(recipe, tokenizer));
  // Records are scored side by side; 2048 tokens fill the products, and more would only take memory.
  constexpr int64_t kTokens = 2048;
  const int64_t tokens = std::max(recipe.sequence_len, kTokens);
  const SessionUse use{.training = false,
                       .tokens = tokens,
                       .max_positions = recipe.sequence_len,
                       .kv_tokens = 0,
                       .logits_rows = 0};
  Session session(recipe, files, use, Session::rehearse(recipe, files, use));
  if (!recipe.adapter.empty()) load_adapter(session, recipe.adapter);
  const EvalResult result = evaluate(session, data, tokens);
  if (recipe.json) {
    fmt::print("{}\n", result.to_json());
  } else {
    fmt::print("loss {:.4f}  perplexity {:.2f}  bits/byte {:.4f}  ({} tokens, {} records)\n",
               result.loss, result.perplexity, result.bits_per_byte, result.tokens, result.records);
  }
  return 0;
}

}  // namespace jackscrew
