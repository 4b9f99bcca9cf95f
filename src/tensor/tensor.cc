#include "tensor/tensor.h"

namespace jackscrew {

Tensor::Tensor(void* data, DType dtype, std::initializer_list<int64_t> shape)
    : data_(data), size_(1), rank_(static_cast<int>(shape.size())), dtype_(dtype) {
  if (rank_ == 0 || rank_ > kMaxRank) fail(ErrorKind::generic, "tensor of rank {}", rank_);
  size_t i = 0;
  for (const int64_t extent : shape) {
    if (extent < 0) fail(ErrorKind::generic, "tensor with extent {}", extent);
    shape_[i++] = extent;
    size_ = checked_mul(size_, extent);
  }
  row_stride_ = cols();
}

std::string Tensor::describe() const {
  std::string text = dtype_name(dtype_);
  text += '[';
  for (int i = 0; i < rank_; ++i) text += (i > 0 ? ", " : "") + std::to_string(dim(i));
  return text + ']';
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  if (begin < 0 || begin > end || end > rows()) {
    fail(ErrorKind::generic, "rows {}..{} of {}", begin, end, describe());
  }
  Tensor out = *this;
  if (data_ != nullptr) {
    out.data_ = static_cast<uint8_t*>(data_) + begin * row_stride_ * dtype_size(dtype_);
  }
  out.rank_ = 2;
  out.shape_ = {end - begin, cols(), 0};
  out.size_ = (end - begin) * cols();
  return out;
}

Tensor Tensor::columns(int64_t begin, int64_t end) const {
  if (begin < 0 || begin > end || end > cols()) {
    fail(ErrorKind::generic, "columns {}..{} of {}", begin, end, describe());
  }
  Tensor out = *this;
  if (data_ != nullptr) out.data_ = static_cast<uint8_t*>(data_) + begin * dtype_size(dtype_);
  out.rank_ = 2;
  out.shape_ = {rows(), end - begin, 0};
  out.size_ = out.shape_[0] * (end - begin);
  return out;
}

Tensor Tensor::reshaped(std::initializer_list<int64_t> shape) const {
  const Tensor out(data_, dtype_, shape);
  if (!contiguous() || out.size() != size()) {
    fail(ErrorKind::generic, "cannot view {} as {}", describe(), out.describe());
  }
  return out;
}

}  // namespace jackscrew
