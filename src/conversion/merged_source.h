// A model with adapters merged into it, as a WeightSource: the merged weights are computed as they
// are read.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/peft.h"
#include "kernels/device.h"
#include "learners/learner.h"
#include "quant/weight.h"
#include "recipe/recipe.h"
#include "session/model_files.h"

namespace jackscrew {

// An adapter's directory, and the factor by which its change is multiplied.
struct WeightedAdapter {
  std::string directory;
  double weight = 1.0;
};

// Throws Error(does_not_fit) where there is no room for so many bytes beside those `held` already.
// Empty: what asks has held more before.
using RoomCheck = std::function<void(int64_t bytes, int64_t held)>;

// W + sum of weight (W_a - W) over the adapters, where W_a is W with that adapter alone merged: for
// LoRA W + sum of weight scale B A, which PEFT calls "cat". An adapter that makes up for rounding
// is merged into W as a run with its storage has it. Computed in f32 from the base's decoded
// values, on the CPU, panel by panel; the result does not depend on the number of threads.
class MergedSource : public WeightSource {
 public:
  // `base`, which has weights, must outlive it. Throws Error(model) for an adapter that cannot be
  // read or was made for another model: a tensor is missing, has another shape or has no place.
  // Throws Error(non_finite) for adapter values that are not finite. `recipe` sets the number of
  // threads. `check` is asked about the memory of all values before it is taken, then about the
  // rest of most_bytes().
  MergedSource(const Recipe& recipe, const ModelFiles& base,
               const std::vector<WeightedAdapter>& adapters, const RoomCheck& check = {});

  const StoredTensor* find(std::string_view name) const override;
  std::vector<std::string> names() const override { return base_.source->names(); }
  void release(const StoredTensor& tensor) const override;

  // The bytes that it holds, at most: the adapters' values, and what the weight that is being read
  // needs.
  int64_t most_bytes() const;
  // Those of the adapters' values, which it holds all the time.
  int64_t held_bytes() const { return values_.capacity(); }

 private:
  struct OpenAdapter {
    WeightedAdapter from;
    std::unique_ptr<Learner> learner;
    PeftAdapter read;
  };
  // Values that have their place, and where they are read from.
  struct UnreadValues {
    Tensor to;  // f32 [size]
    PeftTensor tensor;
    std::string directory;
  };
  struct AdapterMerge {  // what one adapter does to one weight
    WeightMerge merge;
    double weight;
    const Format* rounds_to;  // before it is merged; null: W stays as it is
  };
  struct Merged {
    // One adapter, as a whole: its merge needs no sum in f64.
    bool is_simple() const { return parts.size() == 1 && parts[0].weight == 1.0; }

    WeightSpec spec;
    std::vector<AdapterMerge> parts;
    StoredTensor tensor;
  };
  // The base's values of the weight that is being read, and what they are rounded to.
  struct OpenWeight {
    const Merged* merged;
    OwnedTensor bytes;
    StoredRows rows;
    std::map<const Format*, Weight> rounded;
  };
  void add(const OpenAdapter& adapter, std::vector<UnreadValues>& unread);
  Tensor rows(const Merged& merged, int64_t begin, int64_t end) const;
  void begin(const Merged& merged) const;
  // Rows of what the adapter is merged into, f32.
  void decode(const AdapterMerge& part, int64_t begin, int64_t end, const Tensor& out) const;
  // The memory with which a weight is rounded, beside that which it then takes.
  int64_t staging_to_round(const WeightSpec& spec, const Format& format) const;
  // The base's tensor of a merged weight.
  const StoredTensor& stored(const WeightSpec& spec) const;

  const ModelFiles& base_;
  bool tied_;
  std::map<std::string, Merged, std::less<>> merged_;
  std::unique_ptr<Device> device_;
  mutable Memory memory_;
  Arena values_;  // of the adapters' tensors; merges have views into them
  std::unique_ptr<Ops> ops_;
  mutable std::unique_ptr<OpenWeight> open_;
  mutable OwnedTensor panels_;  // f32, two panels of the current weight: result, one adapter's
};

}  // namespace jackscrew
