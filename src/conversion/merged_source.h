// A model and adapters as one: the weights of the merged model, computed as they are read.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/peft.h"
#include "kernels/device.h"
#include "learners/learner.h"
#include "quant/stored_rows.h"
#include "recipe/recipe.h"
#include "session/model_files.h"

namespace jackscrew {

// An adapter's directory, and how much of what it changes is taken.
struct WeightedAdapter {
  std::string directory;
  double weight = 1.0;
};

// W + sum of weight (W_a - W) over the adapters, W_a being what one of them alone makes of W: for
// LoRA W + sum of weight scale B A, which PEFT calls "cat". Computed in f32 from what the base's
// own format decodes to, on the CPU, panel by panel; the same bits whatever the number of threads.
class MergedSource : public WeightSource {
 public:
  // `base` and its weights must outlive it. Throws Error(model) for an adapter that cannot be read
  // or that was made for another model: a tensor of it is missing, of another shape, or has no
  // place. `recipe` says how many threads compute.
  MergedSource(const Recipe& recipe, const ModelFiles& base,
               const std::vector<WeightedAdapter>& adapters);

  const StoredTensor* find(std::string_view name) const override;
  std::vector<std::string> names() const override { return base_.names(); }
  void release(const StoredTensor& tensor) const override;

 private:
  struct Part {  // what one adapter does to one weight
    WeightMerge merge;
    double weight;
  };
  struct Merged {
    WeightSpec spec;
    std::vector<Part> parts;
    StoredTensor tensor;
  };
  // The base's values of one weight.
  struct Current {
    const Merged* merged;
    OwnedTensor bytes;
    StoredRows rows;
  };
  void add(const Recipe& recipe, const ModelFiles& base, const WeightedAdapter& adapter);
  void check_finite(const PeftAdapter& adapter, const std::string& directory) const;
  Tensor rows(const Merged& merged, int64_t begin, int64_t end) const;
  void begin(const Merged& merged) const;

  const WeightSource& base_;
  bool tied_;
  std::vector<PeftAdapter> adapters_;
  std::map<std::string, Merged, std::less<>> merged_;
  std::unique_ptr<Device> device_;
  mutable Memory memory_;
  std::unique_ptr<Ops> ops_;
  mutable std::unique_ptr<Current> current_;
  mutable OwnedTensor panels_;  // f32, two panels of the current weight's: result, one adapter's
};

}  // namespace jackscrew
