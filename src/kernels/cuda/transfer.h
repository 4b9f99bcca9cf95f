// Copies between host and GPU, by way of pinned memory.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "tensor/tensor.h"

namespace jackscrew::cuda {

// Buffers that the GPU can reach by itself, used in turn. While it copies a large one, the host
// fills or empties the other; of small ones, which wait for all work before them, there are enough
// for the host to go ahead by several micro-batches.
class Transfer {
 public:
  Transfer();
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
  static void for_pieces(const Tensor& to, const Tensor& from, const Body& body);
  void upload(const Tensor& to, const Tensor& from, cudaStream_t stream);
  void download(const Tensor& to, const Tensor& from, cudaStream_t stream);

  Ring small_;
  Ring large_;
};

}  // namespace jackscrew::cuda
