// The exact values of a weight while they are not trained: on the host, in memory or in a file.
#pragma once

#include <string>

#include "kernels/context.h"
#include "tensor/memory.h"

namespace jackscrew {

class Master {
 public:
  // Takes rows * cols values of `dtype` (f32 or bf16) from `memory`; they are zero.
  Master(Memory& memory, const std::string& name, int64_t rows, int64_t cols, DType dtype);

  // The values; where they are in a file, the tensor moves with every store().
  const Tensor& view() const { return values_.view(); }
  // The file that holds them, where one does. store() begins a new one and leaves this as it is.
  fs::path file() const { return memory_->file_of(values_.view().raw()); }
  // They will be fetched soon.
  void will_need() { memory_->will_need(values_.view()); }

  // They will be overwritten through view(): in a file, whose name a checkpoint may share, a new
  // one takes its place. What they are until then is unspecified.
  void begin_anew() {
    if (!file().empty()) values_ = allocate();
  }

  // How values come and go: &Ops::copy, or of values that are kept as f32 &Ops::copy_beside.
  using Copy = void (Ops::*)(const Tensor& to, const Tensor& from);

  // Writes rows [begin, end) to `to`, f32 [end - begin, cols].
  void fetch(Context& context, int64_t begin, int64_t end, const Tensor& to,
             Copy copy = &Ops::copy) const;
  // Takes the values from `from`, f32 [rows, cols]; into bf16 by stochastic rounding under
  // context.scalars. Returns the sum of the squared changes. In a file, the new values need room
  // beside the old ones for as long as the call lasts.
  double store(Context& context, const Tensor& from, Copy copy = &Ops::copy);

 private:
  OwnedTensor allocate() const;
  template <class T>
  double store_as(Context& context, const Tensor& from, Copy copy);

  Memory* memory_;
  int64_t rows_, cols_;
  DType dtype_;
  uint32_t tensor_;  // hash of the name
  OwnedTensor values_;
};

}  // namespace jackscrew
