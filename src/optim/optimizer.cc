#include "optim/optimizer.h"

#include "base/error.h"
#include "optim/adamw.h"
#include "optim/adamw_8bit.h"

namespace jackscrew {

void check_weight_decay(double decay, double rate, const std::string& rates) {
  if (rate * decay < 1) return;
  throw Error(ErrorKind::usage,
              fmt::format("weight_decay is {}, which with {} takes all of a weight away, or more, "
                          "in a step",
                          decay, rates),
              fmt::format("0.01 to 0.1 are usual; it must be below {:.3g}", 1 / rate));
}

std::span<const OptimizerEntry> all_optimizers() {
  static constexpr OptimizerEntry kOptimizers[] = {
      {"adamw", "states in f32", make_adamw},
      {"adamw_8bit", "states as 8-bit codes", make_adamw_8bit},
  };
  return kOptimizers;
}

std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const OptimizerOptions& options) {
  std::string known;
  for (const OptimizerEntry& entry : all_optimizers()) {
    if (name == entry.name) return entry.make(options);
    known += fmt::format("{}{}", known.empty() ? "" : " ", entry.name);
  }
  throw Error(ErrorKind::usage, fmt::format("unknown optimizer {}", name),
              "known optimizers: " + known);
}

}  // namespace jackscrew
