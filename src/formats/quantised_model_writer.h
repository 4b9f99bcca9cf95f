// The weights of a Hugging Face directory of which some are written as several tensors, in a layout
// of quantised_layout.h: what the files of such layouts share.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/checked.h"
#include "formats/model_writer.h"
#include "formats/safetensors.h"

namespace jackscrew {

// The tensors that stand for a weight, without their bytes.
using CodedSpecs = std::function<std::vector<SafetensorsSpec>(const WeightSpec&)>;

class QuantisedModelWriter : public ModelWriter {
 public:
  // `tensors`: all weights in their order; those without a format are written as `coded` says. See
  // ShardedSafetensorsWriter.
  QuantisedModelWriter(const fs::path& directory, const std::vector<ModelTensor>& tensors,
                       const CodedSpecs& coded, int64_t max_shard_bytes);
  // The bytes of the files that such a writer makes.
  static int64_t bytes(const std::vector<ModelTensor>& tensors, const CodedSpecs& coded,
                       int64_t max_shard_bytes);

  void write(const WeightSpec& weight, std::span<const uint8_t> bytes) override {
    writer_.write(weight.name, bytes);
  }
  // The next weight that has no format.
  void write_coded(const std::vector<TensorBytes>& parts);
  void close() override { writer_.close(); }

 private:
  ShardedSafetensorsWriter writer_;
};

// The bytes of tensors.
int64_t bytes_of(const std::vector<SafetensorsSpec>& specs);

inline constexpr int64_t kWordBits = 32;

// Puts number `index` of `bits` bits into a little-endian stream of words that stand `stride` words
// apart; see bits_at(), of which it is the reverse. The bits there are 0.
inline void put_bits(std::vector<uint32_t>& words, int64_t begin, int64_t stride, int64_t index,
                     int64_t bits, uint32_t number) {
  const int64_t at = index * bits, shift = at % kWordBits;
  const auto word = static_cast<size_t>(begin + at / kWordBits * stride);
  words[word] |= number << shift;
  if (shift + bits > kWordBits) {
    words[word + static_cast<size_t>(stride)] |= number >> (kWordBits - shift);
  }
}

// Zeros for a tensor of words, two-dimensional.
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
