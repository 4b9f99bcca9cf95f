#include "base/error.h"
#include "formats/model_writer.h"
#include "formats/safetensors.h"
#include "quant/plain.h"

namespace jackscrew {

namespace {

SafetensorsSpec safetensors_spec(const ModelTensor& tensor) {
  const char* dtype = safetensors_dtype(*tensor.format);
  if (dtype == nullptr) {
    fail(ErrorKind::generic, "{} in {}, which safetensors has not", tensor.spec.name,
         tensor.format->name());
  }
  SafetensorsSpec spec{tensor.spec.name, dtype, {}};
  if (!tensor.spec.is_vector()) spec.shape.push_back(tensor.spec.rows);
  spec.shape.push_back(tensor.spec.cols);
  return spec;
}

std::vector<SafetensorsSpec> safetensors_specs(const std::vector<ModelTensor>& tensors) {
  std::vector<SafetensorsSpec> specs;
  for (const ModelTensor& tensor : tensors) specs.push_back(safetensors_spec(tensor));
  return specs;
}

class SafetensorsModelWriter : public ModelWriter {
 public:
  SafetensorsModelWriter(const fs::path& directory, const std::vector<ModelTensor>& tensors,
                         int64_t max_shard_bytes)
      : writer_(directory, safetensors_specs(tensors), max_shard_bytes) {}

  void write(const WeightSpec& weight, std::span<const uint8_t> bytes) override {
    writer_.write(weight.name, bytes);
  }
  void close() override { writer_.close(); }

 private:
  ShardedSafetensorsWriter writer_;
};

}  // namespace

const char* safetensors_dtype(const Format& format) {
  if (&format == &f32_format()) return "F32";
  if (&format == &bf16_format()) return "BF16";
  return &format == &f16_format() ? "F16" : nullptr;
}

std::unique_ptr<ModelWriter> make_safetensors_model_writer(const fs::path& directory,
                                                           const std::vector<ModelTensor>& tensors,
                                                           int64_t max_shard_bytes) {
  return std::make_unique<SafetensorsModelWriter>(directory, tensors, max_shard_bytes);
}

}  // namespace jackscrew
