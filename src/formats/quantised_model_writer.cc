#include "formats/quantised_model_writer.h"

namespace jackscrew {

namespace {

std::vector<SafetensorsSpec> specs_of_model(const std::vector<ModelTensor>& tensors,
                                            const CodedSpecs& coded) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [weight, format] : tensors) {
    if (format == nullptr) {
      append_joined(coded(weight), specs);
    } else {
      specs.push_back({weight.name, safetensors_dtype(*format), weight.shape()});
    }
  }
  return specs;
}

}  // namespace

QuantisedModelWriter::QuantisedModelWriter(const fs::path& directory,
                                           const std::vector<ModelTensor>& tensors,
                                           const CodedSpecs& coded, int64_t max_shard_bytes)
    : writer_(directory, specs_of_model(tensors, coded), max_shard_bytes) {}

FileSizes QuantisedModelWriter::sizes(const std::vector<ModelTensor>& tensors,
                                      const CodedSpecs& coded, int64_t max_shard_bytes) {
  return ShardedSafetensorsWriter::sizes(specs_of_model(tensors, coded), max_shard_bytes);
}

void QuantisedModelWriter::write_coded(const std::vector<TensorBytes>& parts) {
  for (const TensorBytes& part : parts) writer_.write(part.spec.name, part.bytes);
}

}  // namespace jackscrew
