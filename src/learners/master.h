// The exact values of a weight while it is not trained: on the host, in memory or in a file.
#pragma once

#include <string>

#include "kernels/context.h"
#include "tensor/memory.h"

namespace jackscrew {

// How values come from the host or go there: by Ops::copy() or, which is for masters kept as f32,
// by Ops::copy_async().
enum class HostCopy { in_order, beside_steps };
void copy_values(Ops& ops, HostCopy how, const Tensor& to, const Tensor& from);

class Master {
 public:
  // Allocates rows * cols values of `dtype` (f32 or bf16) in `memory`, which must outlive this.
  // They are zero.
  Master(Memory& memory, const std::string& name, int64_t rows, int64_t cols, DType dtype);

  // The values. Where they are in a file, every store() moves the tensor.
  const Tensor& view() const { return values_.view(); }
  // The file that holds them, or empty. store() starts a new file and leaves this one as it is.
  fs::path file() const { return memory_->file_of(values_.view().raw()); }
  // They will be fetched soon.
  void will_need() { memory_->will_need(values_.view()); }

  // Call before overwriting the values through view(): a file, which a checkpoint may have linked,
  // is replaced by a new one. Until then the values are unspecified.
  void detach_file() {
    if (!file().empty()) values_ = allocate();
  }

  // Writes rows [begin, end) to `to`, f32 [end - begin, cols].
  void fetch(Context& context, int64_t begin, int64_t end, const Tensor& to,
             HostCopy copy = HostCopy::in_order) const;
  // Stores the values of `from`, f32 [rows, cols]; to bf16 by stochastic rounding under
  // context.scalars. Returns the sum of the squared changes. In a file, the new values need room
  // beside the old ones for the duration of the call.
  double store(Context& context, const Tensor& from, HostCopy copy = HostCopy::in_order);

 private:
  OwnedTensor allocate() const;
  template <class T>
  double store_as(Context& context, const Tensor& from, HostCopy copy);

  Memory* memory_;
  int64_t rows_, cols_;
  DType dtype_;
  uint32_t tensor_;  // hash of the name
  OwnedTensor values_;
};

}  // namespace jackscrew
