#include <utility>

#include "base/error.h"
#include "formats/bitsandbytes.h"
#include "formats/model_writer.h"
#include "formats/safetensors.h"
#include "quant/nf4.h"
#include "tensor/memory.h"

namespace jackscrew {

namespace {

SafetensorsSpec safetensors_spec(const ModelTensor& tensor) {
  const char* dtype = safetensors_dtype(*tensor.format);
  if (dtype == nullptr) {
    fail(ErrorKind::generic, "{} in {}, which safetensors has not", tensor.spec.name,
         tensor.format->name());
  }
  return {tensor.spec.name, dtype, tensor.spec.shape()};
}

// The file's tensors for a weight in NF4.
std::vector<TensorBytes> packed_tensors(const ModelTensor& tensor, std::span<const uint8_t> bytes,
                                        const std::string& dtype) {
  const Storage storage{Tensor(const_cast<uint8_t*>(bytes.data()), DType::u8, {std::ssize(bytes)}),
                        tensor.spec.rows, tensor.spec.cols};
  return nf4_tensors(tensor.spec.name, *tensor.format, storage, dtype);
}

// How a weight in NF4 is declared depends on its shape alone, so zeros serve as its bytes.
std::vector<SafetensorsSpec> packed_specs(const ModelTensor& tensor, const std::string& dtype) {
  Memory memory("host", make_host_backing(), 0);
  const OwnedTensor zeros(memory, Purpose::io, DType::u8, {tensor.bytes()});
  const std::span bytes(zeros.view().data<uint8_t>(), static_cast<size_t>(tensor.bytes()));
  std::vector<SafetensorsSpec> specs;
  for (TensorBytes& part : packed_tensors(tensor, bytes, dtype)) {
    specs.push_back(std::move(part.spec));
  }
  return specs;
}

std::vector<SafetensorsSpec> safetensors_specs(const std::vector<ModelTensor>& tensors,
                                               const Nf4Dtypes& dtypes) {
  std::vector<SafetensorsSpec> specs;
  for (const ModelTensor& tensor : tensors) {
    if (tensor.format == &nf4_format()) {
      append_joined(packed_specs(tensor, dtypes.at(tensor.spec.name)), specs);
    } else {
      specs.push_back(safetensors_spec(tensor));
    }
  }
  return specs;
}

class SafetensorsModelWriter : public ModelWriter {
 public:
  SafetensorsModelWriter(const fs::path& directory, const std::vector<ModelTensor>& tensors,
                         const Nf4Dtypes& dtypes, int64_t max_shard_bytes)
      : dtypes_(dtypes), writer_(directory, safetensors_specs(tensors, dtypes), max_shard_bytes) {}

  void write(const WeightSpec& weight, std::span<const uint8_t> bytes) override {
    const auto packed = dtypes_.find(weight.name);
    if (packed == dtypes_.end()) return writer_.write(weight.name, bytes);
    for (const TensorBytes& part : packed_tensors({weight, &nf4_format()}, bytes, packed->second)) {
      writer_.write(part.spec.name, part.bytes);
    }
  }
  void close() override { writer_.close(); }

 private:
  Nf4Dtypes dtypes_;
  ShardedSafetensorsWriter writer_;
};

}  // namespace

std::unique_ptr<ModelWriter> make_safetensors_model_writer(const fs::path& directory,
                                                           const std::vector<ModelTensor>& tensors,
                                                           const Nf4Dtypes& dtypes,
                                                           int64_t max_shard_bytes) {
  return std::make_unique<SafetensorsModelWriter>(directory, tensors, dtypes, max_shard_bytes);
}

FileSizes safetensors_model_sizes(const std::vector<ModelTensor>& tensors, const Nf4Dtypes& dtypes,
                                  int64_t max_shard_bytes) {
  return ShardedSafetensorsWriter::sizes(safetensors_specs(tensors, dtypes), max_shard_bytes);
}

}  // namespace jackscrew
