// A tensor as it lies in a file: bytes that belong to the file's map, with their format.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quant/format.h"

namespace jackscrew {

// Takes the bytes of a storage, piece by piece and in order.
using StorageSink = std::function<void(std::span<const uint8_t>)>;

struct StoredTensor {
  std::string name;            // the Hugging Face name, whatever the file calls it
  FormatPointer format;        // null: one that weights cannot be read from
  std::vector<int64_t> shape;  // [out, in] for matrices, [n] for vectors
  std::span<const uint8_t> bytes;
  // GGUF files of Llama keep the rows of q_proj and k_proj with the two halves of each head
  // interleaved. 0: rows in order; else the number of heads: logical row r is stored as row
  // interleaved_row(r).
  int64_t interleaved_heads = 0;
  // Further parts, of formats that files keep in several tensors: in the format's storage each
  // begins at the next multiple of kPartAlignment (part_layout.h).
  std::vector<std::span<const uint8_t>> extra_parts = {};
  // Set if the file keeps the same information in another order: writes the storage of the first
  // `rows` rows, in the order of the format, to the sink, on `threads` threads. It needs a few
  // panels of host memory at most (kPanelBytes).
  std::function<void(int64_t rows, int threads, const StorageSink&)> transcode = {};
  // Set if the values are in no file but computed on request, on the host. The format is then f32,
  // there are no bytes, and any panel of at most encode_panel_rows() may be requested.
  RowSource computed = {};
  // torch's name, "bfloat16" for one, of the type to which the program of the file decodes the
  // values; empty where the file does not say.
  std::string decoded_dtype = {};
  // What the values follow from beside the bytes, the shape and the format's name, such as a
  // codebook or a size of groups that the configuration gives: fingerprints tell tensors apart by
  // it. Empty for what is usual.
  std::string settings = {};
  // How many of the shape[0] rows may be padding that the model does not have.
  int64_t padding_rows = 0;
  // Owns those of `bytes` and `extra_parts` that are in no file.
  std::shared_ptr<const std::vector<uint8_t>> owned_bytes = {};

  int64_t size_bytes() const {
    size_t size = bytes.size();
    for (const auto part : extra_parts) size += part.size();
    return static_cast<int64_t>(size);
  }

  int64_t interleaved_row(int64_t row) const {
    if (interleaved_heads == 0) return row;
    const int64_t head_dim = shape[0] / interleaved_heads;
    const int64_t head = row / head_dim;
    const int64_t within = row % head_dim;
    const int64_t half = head_dim / 2;
    return head * head_dim + (within % half) * 2 + within / half;
  }
};

// The logical row that lies at `row` of a file's `rows`, the inverse of
// StoredTensor::interleaved_row.
inline int64_t logical_row(int64_t row, int64_t heads, int64_t rows) {
  if (heads == 0) return row;
  const int64_t head_dim = rows / heads;
  const int64_t within = row % head_dim;
  return row / head_dim * head_dim + within % 2 * (head_dim / 2) + within / 2;
}

// A set of stored tensors: an HF directory or a GGUF file. Must outlive what find() returned.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Null when there is no such tensor.
  virtual const StoredTensor* find(std::string_view name) const = 0;
  virtual std::vector<std::string> names() const = 0;
  // The bytes of this tensor are not needed any more; their pages may go.
  virtual void release(const StoredTensor& tensor) const = 0;
  // The name that the program of the file has for its mix of types, such as "q4_k_m"; else empty.
  virtual std::string file_type() const { return {}; }
};

}  // namespace jackscrew
