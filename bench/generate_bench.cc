// Speed of token-by-token generation, beside what memory allows: every weight is read once per
// token.
//   generate_bench [--clock=wall|cpu] [a recipe's settings, such as model=PATH storage=f32
//   threads=4]
//                  [--json]
// Without settings: SmolLM2-135M's shape with random weights, 2 threads, 32 tokens after a prompt
// of 32; weights as f32, as bf16, and as the model's file has them.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/json_object.h"
#include "bench/machine.h"
#include "cli/arguments.h"
#include "generation/generate.h"

namespace jackscrew {
namespace {

// What one token reads: all weights but an embedding that is not the head too.
double weight_bytes(const Stage& stage) {
  double total = 0.0;
  for (const auto& parameter : stage.parameters()) {
    const bool gathered = parameter->weight->spec().kind == WeightKind::embedding &&
                          !stage.config().tie_word_embeddings;
    if (!gathered) total += static_cast<double>(parameter->weight->storage().bytes.bytes());
  }
  return total;
}

void measure(const Recipe& recipe, const ModelFiles& files, const BenchClock& clock) {
  constexpr int64_t kPrompt = 32;
  const SessionUse use = generation_use(kPrompt, recipe.max_new_tokens);
  Session session(recipe, files, use, Session::rehearse(recipe, files, use));
  std::vector<int32_t> ids(kPrompt);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(static_cast<int64_t>(i) * 997 % files.config.vocab_size);
  }
  session.logits(ids, 1, true);
  std::vector<double> times;
  for (int64_t i = 0; i < recipe.max_new_tokens; ++i) {
    const double begin = clock.seconds();
    session.logits(std::span(ids).first(1), 1, true);
    times.push_back(clock.seconds() - begin);
  }
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  const double bandwidth = read_bandwidth(clock);
  const double bytes = weight_bytes(session.stage());
  if (recipe.json) {
    JsonObject object;
    object.add("bench", "generate")
        .add("storage", recipe.storage)
        .add("tokens_per_second", 1.0 / median)
        .add("weight_bytes", bytes)
        .add("bandwidth", bandwidth)
        .add("share_of_floor", bytes / bandwidth / median);
    fmt::print("{}\n", object.text());
  } else {
    fmt::print(
        "storage {:<5} {:7.1f} tokens/s (fastest {:.1f}), {:5.1f} % of what reading {:.0f} MB "
        "at {:.1f} GB/s allows\n",
        recipe.storage, 1.0 / median, 1.0 / times[0], 100.0 * bytes / bandwidth / median,
        1e-6 * bytes, 1e-9 * bandwidth);
  }
  std::fflush(stdout);
}

int run(std::vector<std::string> arguments) {
  BenchClock clock = take_clock(arguments);
  // What is written later wins.
  arguments.insert(arguments.begin(), {"threads=2", "max_new_tokens=32"});
  Recipe recipe = read_arguments(arguments, 0, "generate_bench");
  const ModelFiles files = open_model(recipe.model.empty() ? "smollm2-135m" : recipe.model);
  if (files.source == nullptr) recipe.random_init = true;
  clock.threads = narrow<int>(recipe.threads);
  if (!recipe.json) {
    fmt::print("{}, {} threads, {}, {} time\n", files.origin, recipe.threads,
               isa_name(choose_isa(recipe.isa)), clock.name());
  }
  std::vector<std::string> storages = {"f32", "bf16"};
  if (files.source != nullptr) storages.push_back("keep");
  if (recipe.storage != "keep") storages = {recipe.storage};
  for (const std::string& storage : storages) {
    recipe.storage = storage;
    measure(recipe, files, clock);
  }
  return 0;
}

}  // namespace
}  // namespace jackscrew

int main(int argc, char** argv) {
  return jackscrew::guarded("generate_bench", [&] {
    return jackscrew::run({argv + 1, argv + argc});
  });
}
