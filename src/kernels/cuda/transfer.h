// Copies between host and GPU, through pinned memory.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "tensor/tensor.h"

namespace jackscrew::cuda {

// Owns pinned buffers, used in turn. While the GPU copies one large buffer, the host fills or
// empties the other. Small ones wait for all work before them; there are enough for the host to run
// several micro-batches ahead.
class Transfer {
 public:
  Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Copies in the order of the stream's work; tensors of the same dtype and shape. Once the call
  // returns, the host's side is not used any more; a copy within the GPU may still be running.
  void copy(const Tensor& to, const Tensor& from, cudaStream_t stream);

 private:
  struct Piece;
  struct Buffer {
    void* data = nullptr;
    cudaEvent_t done = nullptr;  // with the last piece
  };
  class Ring {
   public:
    Ring(size_t count, int64_t bytes);
    ~Ring();
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;
    // The next one; what was in it before has been copied.
    const Buffer& next();

   private:
    std::vector<Buffer> buffers_;
    size_t next_ = 0;
  };
  template <class Body>
  static void for_pieces(const Tensor& to, const Tensor& from, int64_t most, const Body& body);
  void upload(const Tensor& to, const Tensor& from, cudaStream_t stream);
  void download(const Tensor& to, const Tensor& from, cudaStream_t stream);

  Ring small_;
  Ring large_;
};

}  // namespace jackscrew::cuda
