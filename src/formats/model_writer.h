// Writes the files of a model weight by weight: the counterpart of WeightSource.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "quant/format.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// A weight as a file will hold it: row by row, format.row_bytes(cols) each, or if that is 0 as one
// block of format.storage_bytes().
struct ModelTensor {
  WeightSpec spec;
  const Format* format;

  int64_t row_bytes() const { return format->row_bytes(spec.cols); }
  int64_t bytes() const { return format->storage_bytes(spec.rows, spec.cols); }
};

// Writes in one pass: everything is declared when the writer is made, the bytes follow in declared
// order. Misuse and a failing disk are Error(generic).
class ModelWriter {
 public:
  virtual ~ModelWriter() = default;

  // The number of heads in which the file interleaves a weight's rows, or 0; see
  // StoredTensor::interleaved_heads.
  virtual int64_t interleaved_heads(const WeightSpec&) const { return 0; }
  // Appends the next bytes of a weight, in the file's order of rows. They are in host memory, and
  // aligned to 64 bytes if they are the whole storage.
  virtual void write(const WeightSpec& weight, std::span<const uint8_t> bytes) = 0;
  // Completes the files, which are not usable without it.
  virtual void close() = 0;
};

// Of every weight in NF4, by its name: torch's name, "bfloat16" for one, of the type to which
// bitsandbytes shall decode it.
using Nf4Dtypes = std::map<std::string, std::string>;

// Writes the weights of a Hugging Face directory in f32, bf16, f16 or, in bitsandbytes' layout,
// nf4; see ShardedSafetensorsWriter.
std::unique_ptr<ModelWriter> make_safetensors_model_writer(const fs::path& directory,
                                                           const std::vector<ModelTensor>& tensors,
                                                           const Nf4Dtypes& dtypes,
                                                           int64_t max_shard_bytes);

// What the files take that such a writer writes.
FileSizes safetensors_model_sizes(const std::vector<ModelTensor>& tensors, const Nf4Dtypes& dtypes,
                                  int64_t max_shard_bytes);

}  // namespace jackscrew
