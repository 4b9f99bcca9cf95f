// Copies tensors between a device and the bytes of a file, through a bounded staging buffer.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "formats/safetensors.h"
#include "kernels/ops.h"

namespace jackscrew {

// Bytes moved at a time: large enough for disks and buses, too small to matter in memory.
inline constexpr int64_t kTransferBytes = int64_t{4} << 20;

// How a contiguous tensor is declared in a safetensors file.
inline SafetensorsSpec tensor_spec(const std::string& name, const Tensor& view) {
  SafetensorsSpec spec{name, safetensors_dtype(view.dtype()), {}};
  for (int i = 0; i < view.rank(); ++i) spec.shape.push_back(view.dim(i));
  return spec;
}

// Calls sink(bytes) with the tensor's bytes in order, a chunk at a time.
template <class Sink>
void write_tensor(Ops& ops, const Tensor& view, const Sink& sink) {
  const Tensor bytes(view.raw(), DType::u8, {view.bytes()});
  std::vector<uint8_t> chunk(static_cast<size_t>(std::min(kTransferBytes, view.bytes())));
  for (int64_t begin = 0; begin < view.bytes(); begin += kTransferBytes) {
    const int64_t end = std::min(view.bytes(), begin + kTransferBytes);
    ops.copy(Tensor(chunk.data(), DType::u8, {1, end - begin}), bytes.columns(begin, end));
    sink(std::span<const uint8_t>(chunk.data(), static_cast<size_t>(end - begin)));
  }
}

// Fills a contiguous tensor a chunk at a time: source(begin, chunk) writes its bytes from `begin`
// on, always whole elements.
template <class Source>
void fill_tensor(Ops& ops, const Tensor& view, const Source& source) {
  const Tensor bytes(view.raw(), DType::u8, {view.bytes()});
  std::vector<uint8_t> chunk(static_cast<size_t>(std::min(kTransferBytes, view.bytes())));
  for (int64_t begin = 0; begin < view.bytes(); begin += kTransferBytes) {
    const int64_t end = std::min(view.bytes(), begin + kTransferBytes);
    source(begin, std::span(chunk).first(static_cast<size_t>(end - begin)));
    ops.copy(bytes.columns(begin, end), Tensor(chunk.data(), DType::u8, {1, end - begin}));
  }
}

// Fills a contiguous tensor from bytes of exactly its size, of any alignment.
inline void read_tensor(Ops& ops, std::span<const uint8_t> from, const Tensor& view) {
  fill_tensor(ops, view, [&](int64_t begin, std::span<uint8_t> chunk) {
    std::memcpy(chunk.data(), from.data() + begin, chunk.size());
  });
}

}  // namespace jackscrew
