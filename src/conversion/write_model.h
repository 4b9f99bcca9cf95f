// Writes a model's weights from one kind of file into another, with one panel in memory at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/model_writer.h"
#include "kernels/device.h"
#include "quant/gguf_mixtures.h"
#include "recipe/recipe.h"
#include "report/progress.h"
#include "session/model_files.h"

namespace jackscrew {

enum class ModelFormat : uint8_t { hf, gguf };  // a Hugging Face directory, or one file

// How weights are stored in the output.
struct StorageChoice {
  ModelFormat files = ModelFormat::hf;
  // The recipe's: a format, the name of a GGUF mixture, or "keep": formats stay as they are where
  // the files can hold them.
  std::string storage;
  // The weights whose formats are kept: the model itself or, if adapters were merged, the base.
  const WeightSource* kept = nullptr;
  // The format of a weight whatever the storage; null: the storage says. Empty: for all.
  std::function<const Format*(const WeightSpec&)> fixed_format = {};
};

// The GGUF mixture named by the storage; null where it names none.
const GgufMixture* mixture_of(const StorageChoice& choice);

// The storages that files of this kind can have, beside "keep".
std::vector<std::string> storages_of(ModelFormat files);

// Throws Error(usage) where files of this kind have no such storage, whatever the model is.
void check_storage(ModelFormat files, const std::string& storage);

// The weights of a model as they will be written, in the model's order. Vectors in GGUF files are
// f32, as llama.cpp expects. The head, the most sensitive to rounding, gets 6 or 8 bits where the
// rest has fewer. A weight whose rows blocks of 256 do not divide gets a wider format with blocks
// of 32, or f16, as llama.cpp's quantiser does. Such exceptions are reported in `notes`, a line
// each. Throws Error(usage) where the files have no such storage, Error(model) where a weight is
// missing or has another shape than the configuration says.
std::vector<ModelTensor> tensors_to_write(const ModelFiles& files, const StorageChoice& choice,
                                          std::vector<std::string>& notes);

// Thrown where a weight has a value that its format cannot hold, as f16 and blocks with scales of
// f16 cannot hold all, or only such as would become 0. The storages kWide can.
class ValueOutOfRange : public Error {
 public:
  using Error::Error;
  static constexpr const char* kWide[] = {"bf16", "f32"};
};

// Writes the weights of a model one at a time; write_weights() documents values and errors.
class WeightWriter {
 public:
  // Files and writer must outlive it. `written` is told the bytes of each piece.
  WeightWriter(const Recipe& recipe, const ModelFiles& files, ModelWriter& writer,
               ProgressCallback written = {});

  // Weights must come in the writer's order.
  void write(const ModelTensor& tensor);
  // Writes a weight that is encoded already, tensor.bytes() of its format.
  void write_encoded(const ModelTensor& tensor, std::span<const uint8_t> storage);

 private:
  void put(const WeightSpec& weight, std::span<const uint8_t> bytes);
  template <class Fill>
  void write_panel(const ModelTensor& tensor, int64_t heads, int64_t begin, int64_t end,
                   const Fill& fill);
  void write_rows(const ModelTensor& tensor, const StoredTensor& stored, bool as_is);
  void write_whole(const ModelTensor& tensor, const StoredTensor& stored, bool as_is);
  void encode_whole(const ModelTensor& tensor, const StoredTensor& stored, const Storage& out);

  const ModelFiles& files_;
  ModelWriter& writer_;
  ProgressCallback written_;
  int threads_;
  std::unique_ptr<Device> device_;
  Memory memory_;
  std::unique_ptr<Ops> ops_;
  std::vector<uint8_t> out_;  // the panel as it will be written
};

// The memory that writing the largest of `tensors` to such files takes on the host, what computes
// it apart.
int64_t writing_memory(const ModelFiles& files, const std::vector<ModelTensor>& tensors,
                       ModelFormat written);

// Writes all of `tensors`: bytes as they are where the format stays, else the nearest codes. Throws
// Error(model) for a weight that is damaged, or too large or too small for its format, naming both,
// and Error(non_finite). The recipe sets the number of threads; the result does not depend on it.
void write_weights(const Recipe& recipe, const ModelFiles& files,
                   const std::vector<ModelTensor>& tensors, ModelWriter& writer,
                   const ProgressStyle& style);

// Throws what write_weights() would, and writes nothing.
void check_weights(const Recipe& recipe, const ModelFiles& files,
                   const std::vector<ModelTensor>& tensors, const ProgressStyle& style);

}  // namespace jackscrew
