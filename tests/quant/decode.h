// What the tests of storage formats share.
#pragma once

#include <cstring>
#include <vector>

#include "kernels/ops.h"
#include "quant/format.h"

namespace jackscrew {

// `storage` seen as rows of a format; tensors have no const of their own.
inline Tensor storage_tensor(const std::vector<uint8_t>& storage, int64_t rows) {
  const int64_t bytes = div_exact(static_cast<int64_t>(storage.size()), rows);
  return {const_cast<uint8_t*>(storage.data()), DType::u8, {rows, bytes}};
}

template <typename T = float>
std::vector<T> decode_tile(Ops& ops, const Format& format, const Tensor& storage,
                           const TileRange& tile) {
  const int64_t rows = tile.n1 - tile.n0;
  const int64_t cols = tile.k1 - tile.k0;
  std::vector<T> values(static_cast<size_t>(rows * cols));
  format.decode_tile(ops, storage, tile, {values.data(), DTypeOf<T>::value, {rows, cols}});
  return values;
}

// The bytes of a vector, for comparisons that tell -0 from 0 and one NaN from another.
template <typename T>
std::vector<uint32_t> bits_of(const std::vector<T>& values) {
  std::vector<uint32_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) std::memcpy(&bits[i], &values[i], sizeof(T));
  return bits;
}

}  // namespace jackscrew
