// Files of models, written weight by weight: the counterpart of WeightSource.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "quant/format.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// A weight as it is to lie in a file: row by row, each of format.row_bytes(cols), or where that is
// 0 all of format.storage_bytes() at once.
struct ModelTensor {
  WeightSpec spec;
  const Format* format;

  int64_t row_bytes() const { return format->row_bytes(spec.cols); }
  int64_t bytes() const { return format->storage_bytes(spec.rows, spec.cols); }
};

// Written in one pass: everything is declared when the writer is made, the bytes follow in declared
// order. Misuse and a failing disk are Error(generic).
class ModelWriter {
 public:
  virtual ~ModelWriter() = default;

  // Of a weight: 0, or in how many heads the file interleaves its rows, as
  // StoredTensor::interleaved_heads says.
  virtual int64_t interleaved_heads(const WeightSpec&) const { return 0; }
  // The next bytes of a weight, in the file's order of rows; in host memory, aligned to 64 where it
  // is the whole storage.
  virtual void write(const WeightSpec& weight, std::span<const uint8_t> bytes) = 0;
  // Without it the files are not usable.
  virtual void close() = 0;
};

// The weights of a Hugging Face directory, in f32, bf16, f16 or, as bitsandbytes has them, nf4; see
// ShardedSafetensorsWriter. `dtype` is what bitsandbytes is to decode to: "bfloat16" ...
std::unique_ptr<ModelWriter> make_safetensors_model_writer(const fs::path& directory,
                                                           const std::vector<ModelTensor>& tensors,
                                                           const std::string& dtype,
                                                           int64_t max_shard_bytes);

// The bytes of all files that such a writer makes.
int64_t safetensors_model_bytes(const std::vector<ModelTensor>& tensors, const std::string& dtype,
                                int64_t max_shard_bytes);

// What safetensors calls a format; null for those that it has no dtype for.
const char* safetensors_dtype(const Format& format);

}  // namespace jackscrew
