// Writes the weights of a Hugging Face directory, some of them as several tensors in a layout of
// quantised_layout.h. Shared by the writers of these layouts.
#pragma once

#include <cstring>
#include <functional>
#include <vector>

#include "base/checked.h"
#include "formats/model_writer.h"
#include "formats/safetensors.h"
#include "quant/packed_source.h"

namespace jackscrew {

// Returns the tensors that represent a weight, without their bytes.
using CodedSpecs = std::function<std::vector<SafetensorsSpec>(const WeightSpec&)>;

class QuantisedModelWriter : public ModelWriter {
 public:
  // `tensors`: all weights in their order. Those with a null format become the tensors that `coded`
  // returns. See ShardedSafetensorsWriter.
  QuantisedModelWriter(const fs::path& directory, const std::vector<ModelTensor>& tensors,
                       const CodedSpecs& coded, int64_t max_shard_bytes);
  // What the files take that such a writer writes.
  static FileSizes sizes(const std::vector<ModelTensor>& tensors, const CodedSpecs& coded,
                         int64_t max_shard_bytes);

  void write(const WeightSpec& weight, std::span<const uint8_t> bytes) override {
    writer_.write(weight.name, bytes);
  }
  // Writes the next weight without a format.
  void write_coded(const std::vector<TensorBytes>& parts);
  void close() override { writer_.close(); }

 private:
  ShardedSafetensorsWriter writer_;
};

// Writes number `index`, of `bits` bits, of the little-endian stream that begins at word `begin`
// and whose words stand `stride` words apart; the inverse of bits_at(). The bits written to must be
// 0.
inline void put_bits(std::vector<uint32_t>& words, int64_t begin, int64_t stride, int64_t index,
                     int64_t bits, uint32_t number) {
  const int64_t at = index * bits, shift = at % kWordBits;
  const auto word = static_cast<size_t>(begin + at / kWordBits * stride);
  words[word] |= number << shift;
  if (shift + bits > kWordBits) {
    words[word + static_cast<size_t>(stride)] |= number >> (kWordBits - shift);
  }
}

// The words of a two-dimensional i32 tensor, all zero.
inline std::vector<uint32_t> words_of(const SafetensorsSpec& spec) {
  return std::vector<uint32_t>(static_cast<size_t>(checked_mul(spec.shape[0], spec.shape[1])));
}

template <class Element>
TensorBytes with_bytes(const SafetensorsSpec& spec, const std::vector<Element>& elements) {
  TensorBytes out{spec, {}};
  out.bytes.resize(elements.size() * sizeof(Element));
  std::memcpy(out.bytes.data(), elements.data(), out.bytes.size());
  return out;
}

}  // namespace jackscrew
