#include "train/evaluate.h"

#include <cmath>
#include <iostream>
#include <numbers>

#include "base/json_object.h"

namespace jackscrew {

std::string EvalResult::to_json() const {
  JsonObject json;
  json.add("loss", loss).add("perplexity", perplexity).add("bits_per_byte", bits_per_byte);
  json.add("tokens", tokens).add("bytes", bytes).add("records", records);
  return json.text();
}

EvalResult evaluate(Session& session, const Dataset& dataset, int64_t max_tokens,
                    const ProgressStyle& style) {
  const StepBatch batch = evaluation_batch(dataset.examples(), max_tokens);
  EvalResult result;
  result.tokens = batch.targets;
  result.bytes = dataset.stats().trained_bytes;
  result.records = dataset.stats().records;
  ProgressBar bar(std::cerr, style, "evaluating", batch.tokens, "tokens");
  const double sum = session.evaluate(batch, bar.callback());
  bar.finish();
  result.loss = sum / static_cast<double>(std::max<int64_t>(1, batch.targets));
  result.perplexity = std::exp(result.loss);
  if (result.bytes > 0) {
    result.bits_per_byte = sum / std::numbers::ln2 / static_cast<double>(result.bytes);
  }
  return result;
}

DatasetOptions dataset_options(const Recipe& recipe, const Tokenizer& tokenizer) {
  return {recipe.sequence_len, recipe.train_on_inputs,
          chat_format(recipe.chat_template, tokenizer.data(), parse_chat_date(recipe.chat_date)),
          0};
}

}  // namespace jackscrew
