// The options that choose how a model learns: storage, product, learner, optimizer.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/options.h"
#include "kernels/device.h"

namespace jackscrew {

// Where frozen weights live on a CPU: in memory, or in the mapping of their file if they are used
// as they are stored there. With `automatic`, a training run keeps them in memory: it lasts longer
// than loading, its budget should include what each step reads, and huge pages are read faster.
enum class WeightPlace : uint8_t { automatic, memory, mmap };

struct MethodSettings {
  std::string method;
  std::string storage;
  WeightPlace weights = WeightPlace::automatic;
  std::string product;
  std::vector<std::string> product_exclude;
  AttentionLibrary attention = AttentionLibrary::own;
  std::string learner;
  std::string optimizer;
  bool fused_update = false;
  std::optional<bool> gradient_checkpointing;  // nullopt: when memory needs it

  void read(const OptionSet& options);
};

// Their choices come from the tables of formats, products, learners and optimizers: a new row there
// is a new choice.
std::span<const OptionSpec> method_options();

}  // namespace jackscrew
