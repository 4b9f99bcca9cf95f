// Tensor: a typed view of memory that somebody else owns. Cheap to copy; never allocates.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/checked.h"
#include "base/half.h"
#include "tensor/dtype.h"

namespace jackscrew {

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};

// Up to three dimensions; the last is contiguous, the second to last may be strided.
// On the plan device `data` is null and must not be followed.
class Tensor {
 public:
  static constexpr int kMaxRank = 3;

  Tensor() = default;
  Tensor(void* data, DType dtype, std::initializer_list<int64_t> shape);

  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  int64_t dim(int i) const { return shape_[static_cast<size_t>(i)]; }
  // A tensor of rank 1 is one row.
  int64_t rows() const { return rank_ == 0 ? 0 : div_exact(size(), cols()); }
  int64_t cols() const { return rank_ == 0 ? 0 : shape_[static_cast<size_t>(rank_ - 1)]; }
  int64_t row_stride() const { return row_stride_; }  // elements from row to row
  int64_t size() const { return size_; }              // elements
  int64_t bytes() const { return size_ * dtype_size(dtype_); }
  bool empty() const { return rank_ == 0; }
  bool contiguous() const { return row_stride_ == cols() || rows() <= 1; }
  std::string describe() const;  // "f32[512, 576]"

  void* raw() const { return data_; }

  // The elements. Throws Error(generic) if T is not the dtype.
  template <typename T>
  T* data() const {
    if (DTypeOf<T>::value != dtype_) {
      fail(ErrorKind::generic, "tensor {} read as {}", describe(), dtype_name(DTypeOf<T>::value));
    }
    return static_cast<T*>(data_);
  }

  // Rows [begin, end) of the two-dimensional view. Throws Error(generic) if they are out of range.
  Tensor rows(int64_t begin, int64_t end) const;
  // Columns [begin, end) of the two-dimensional view; keeps the row stride. Throws likewise.
  Tensor columns(int64_t begin, int64_t end) const;
  // The same elements in another shape. Throws Error(generic) unless the tensor is contiguous and
  // of that size.
  Tensor reshaped(std::initializer_list<int64_t> shape) const;

 private:
  void* data_ = nullptr;
  std::array<int64_t, kMaxRank> shape_{};
  int64_t row_stride_ = 0;
  int64_t size_ = 0;
  int rank_ = 0;
  DType dtype_ = DType::f32;
};

// The bytes of a contiguous tensor that lies in the host's memory.
inline std::span<uint8_t> bytes_of(const Tensor& tensor) {
  return {static_cast<uint8_t*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}

// Calls body(float{}) or body(bf16{}), as the type says: for kernels on activations.
template <class Body>
void with_activation(DType dtype, const Body& body) {
  dtype == DType::bf16 ? body(bf16{}) : body(float{});
}

// Calls body() with the types of a kernel's input x and output y: if x is bf16, so is y.
template <class Body>
void with_activations(const Tensor& x, const Tensor& y, const Body& body) {
  if (x.dtype() == DType::bf16) return body(bf16{}, bf16{});
  with_activation(y.dtype(), [&]<class Activation>(Activation to) { body(0.0f, to); });
}

}  // namespace jackscrew
