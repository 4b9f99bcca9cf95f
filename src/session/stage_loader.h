// Loads the weights of a session: chooses their formats, and fills them from a file or at random.
#pragma once

#include <optional>

#include "base/progress_callback.h"
#include "model/stage.h"
#include "recipe/recipe.h"
#include "session/model_files.h"

namespace jackscrew {

// Throws Error(model) where the configuration says that the head is tied, but the files have a head
// that differs from the embedding.
void check_tied(const ModelFiles& files);

// The bytes of a stage's weights that lie in file maps.
int64_t mapped_bytes(const Stage& stage);

class StageLoader {
 public:
  // All but `staging`, which holds panels on their way, must outlive the loader. `loaded` is called
  // with the bytes of each weight once it is loaded. read_original() reads from `original`; if that
  // is null, from `files`.
  StageLoader(const Recipe& recipe, const ModelFiles& files, const ModelFiles* original,
              const Learner& learner, Ops& ops, Arena staging, ProgressCallback loaded);

  void check_tied() const;  // checks the files, unless weights are drawn at random
  // The format that the weight is stored in. Throws Error(usage) for a `storage` that cannot be
  // encoded.
  FormatPointer format(const WeightSpec& weight) const;
  // The bytes of a matrix of that format if it can stay in its file's map, with a null pointer on
  // the plan device; else nullopt. Throws as fill() does.
  std::optional<Tensor> mapped(const WeightSpec& weight, const Format& format);
  // Where weights=mmap is set but no weight of the whole model can stay in a file's map, throws
  // Error(usage) saying why.
  void require_mapped() const;
  // fill() loads a weight; read_original() writes its values from before its storage rounded them
  // to `out`, f32 [rows, cols]. Both throw Error(model) naming the file and the tensor where it is
  // missing or has another shape.
  void fill(Weight& weight);
  void read_original(const Weight& weight, const Tensor& out);

  // The most bytes that panels have taken.
  int64_t staging_bytes() const { return staging_.high_water(); }

 private:
  // The tensor of a weight of that format if it can stay in its file's map, else null. Throws as
  // fill() does.
  const StoredTensor* stays_in_map(const WeightSpec& weight, const Format& format) const;

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
