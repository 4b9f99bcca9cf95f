// Copies between host and GPU, by way of pinned memory.
#pragma once

#include <cuda_runtime_api.h>

#include <array>

#include "tensor/tensor.h"

namespace jackscrew::cuda {

// Two buffers that the GPU can reach by itself: while it copies one, the host fills or empties the
// other.
class Transfer {
 public:
  Transfer();
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Copies in the order of the stream's work, tensors of the same dtype and shape. The host's side
  // is done with when the call returns; what lies on the GPU alone may still be under way.
  void copy(const Tensor& to, const Tensor& from, cudaStream_t stream);

 private:
  struct Piece;
  struct Buffer {
    void* data = nullptr;
    cudaEvent_t done = nullptr;  // with the last piece
  };
  template <class Body>
  static void for_pieces(const Tensor& to, const Tensor& from, const Body& body);
  void upload(const Tensor& to, const Tensor& from, cudaStream_t stream);
  void download(const Tensor& to, const Tensor& from, cudaStream_t stream);

  std::array<Buffer, 2> buffers_;
};

}  // namespace jackscrew::cuda
