// Weights by format and shape, without values: for plans only.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "conversion/write_model.h"
#include "formats/safetensors.h"
#include "quant/stored_tensor.h"
#include "quant/weight_spec.h"
#include "recipe/recipe.h"
#include "session/model_files.h"

namespace jackscrew {

class PlannedSource : public WeightSource {
 public:
  // A weight that is stored in a file in that format; when loading is rehearsed, in an order that
  // does not let it be read where it lies.
  void add_stored(const WeightSpec& weight, FormatPointer format);
  // A weight that lies in a file as it is read, so that it may stay there.
  void add_in_place(const WeightSpec& weight, FormatPointer format);
  // A weight that is computed while it is read: it has no stored bytes.
  void add_computed(const WeightSpec& weight, FormatPointer format);

  const StoredTensor* find(std::string_view name) const override;
  std::vector<std::string> names() const override;
  void release(const StoredTensor&) const override {}

 private:
  StoredTensor& add(const WeightSpec& weight, FormatPointer format);

  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

// The model with the adapter of the recipe's learner merged. A named shape has its weights in
// checkpoint_dtype.
std::shared_ptr<WeightSource> planned_merge(const Recipe& recipe, const ModelFiles& files);

// The weights of a result that is a model, as its files will have them; those missing from `specs`
// are f32.
std::shared_ptr<WeightSource> planned_result(const ModelFiles& files,
                                             const std::vector<SafetensorsSpec>& specs);

// The model as files of that kind will have it, with these tensors: for a session that scores it
// before it exists. Of a tensor without a format nothing is counted where weights stay in the
// map of their file; elsewhere f16 is, which is more than it takes.
ModelFiles planned_files(const ModelFiles& model, ModelFormat files,
                         const std::vector<ModelTensor>& tensors);

}  // namespace jackscrew
