// A model's weights from one kind of file into another, a panel in memory at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/gguf_mixtures.h"
#include "formats/model_writer.h"
#include "kernels/device.h"
#include "recipe/recipe.h"
#include "report/progress.h"
#include "session/model_files.h"

namespace jackscrew {

enum class ModelFormat : uint8_t { hf, gguf };  // a Hugging Face directory, or one file

// In which formats weights are written.
struct StorageChoice {
  ModelFormat files = ModelFormat::hf;
  // Of the recipe, a format or a GGUF file's mixture; "keep": as they are stored, where the files
  // can hold that.
  std::string storage;
  // Whose formats are kept: the model itself, or what was merged into it was computed from.
  const WeightSource* kept = nullptr;
};

// The mixture of a GGUF file with that storage; null where it has none.
const GgufMixture* mixture_of(const StorageChoice& choice);

// The weights of a model as they will be written, in its order. Vectors of GGUF files are f32, as
// llama.cpp wants them. The head, which is the most sensitive to rounding, gets 6 bits or 8 where
// the rest has fewer; what cannot have a format of 256 in a block has a wider one of 32, or f16, as
// llama.cpp's quantiser gives it. Such exceptions are told in `notes`, a line each. Throws
// Error(usage) where the files have no such storage, Error(model) where a weight is missing.
std::vector<ModelTensor> tensors_to_write(const ModelFiles& files, const StorageChoice& choice,
                                          std::vector<std::string>& notes);

// Writes weights of a model one at a time; its settings are those of write_weights().
class WeightWriter {
 public:
  // All must outlive it.
  WeightWriter(const Recipe& recipe, const ModelFiles& files, ModelWriter& writer);

  // The weights in the writer's order. `progress` is told of bytes.
  void write(const ModelTensor& tensor, const ProgressCallback& progress);

 private:
  int64_t panel_step(const ModelTensor& tensor, int64_t heads) const;
  template <class Fill>
  void write_panel(const ModelTensor& tensor, int64_t heads, int64_t begin, int64_t end,
                   const ProgressCallback& progress, const Fill& fill);
  void copy(const ModelTensor& tensor, const StoredTensor& stored,
            const ProgressCallback& progress);
  void encode(const ModelTensor& tensor, const StoredTensor& stored,
              const ProgressCallback& progress);
  void encode_whole(const ModelTensor& tensor, const StoredTensor& stored,
                    const ProgressCallback& progress);

  const ModelFiles& files_;
  ModelWriter& writer_;
  int threads_;
  std::unique_ptr<Device> device_;
  Memory memory_;
  std::unique_ptr<Ops> ops_;
  std::vector<uint8_t> out_;  // the panel as it is to be written
};

// Writes all of `tensors`: bytes as they are where the format stays, else the nearest codes. Throws
// Error(model) for a weight that is damaged, or too large for its format (which, and why), and
// Error(non_finite). The recipe says how many threads compute; bits do not depend on that.
void write_weights(const Recipe& recipe, const ModelFiles& files,
                   const std::vector<ModelTensor>& tensors, ModelWriter& writer,
                   const ProgressStyle& style);

}  // namespace jackscrew
