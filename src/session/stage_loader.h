// How the weights of a session come into being: in which format, and from a file or at random.
#pragma once

#include <optional>

#include "base/progress_callback.h"
#include "model/stage.h"
#include "recipe/recipe.h"
#include "session/model_files.h"

namespace jackscrew {

// Throws Error(model) where the files' head is said to be tied and is another matrix than the
// embedding.
void check_tied(const ModelFiles& files);

// Of the weights of a stage that lie in the maps of files.
int64_t mapped_bytes(const Stage& stage);

class StageLoader {
 public:
  // All but `staging`, which holds panels on the way, must outlive the loader. `loaded` is told of
  // the bytes of every weight that is in place. `original` has what read_original() gives; nullptr:
  // `files` have.
  StageLoader(const Recipe& recipe, const ModelFiles& files, const ModelFiles* original,
              const Learner& learner, Ops& ops, Arena staging, ProgressCallback loaded);

  void check_tied() const;  // of the files, unless weights are drawn at random
  FormatPointer format(const WeightSpec& weight) const;
  // The bytes of a matrix of that format where it stays in its file's map; null ones on the plan
  // device. Throws as fill() does.
  std::optional<Tensor> mapped(const WeightSpec& weight, const Format& format);
  // Throws Error(usage) saying why a stage has no weight in the map of a file, where weights=mmap
  // asks for it.
  void require_mapped(const Stage& stage) const;
  // Throw Error(model) naming the file and the tensor where it is missing or has another shape.
  void fill(Weight& weight);
  void read_original(const Weight& weight, const Tensor& out);

  // The most bytes that panels have taken.
  int64_t staging_bytes() const { return staging_.high_water(); }

 private:
  template <class Use>
  static const StoredTensor& with_stored(const ModelFiles& files, const WeightSpec& weight,
                                         const Use& use);

  const Recipe& recipe_;
  const ModelFiles& files_;
  const ModelFiles* original_;
  const WeightSource* source_;  // nullptr: weights are drawn at random
  const Learner& learner_;
  Ops& ops_;
  Arena staging_;
  ProgressCallback loaded_;
};

}  // namespace jackscrew
