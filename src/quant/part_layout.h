// Where the parts of a storage lie (codes, scales), of formats that keep each kind of data in a
// part of its own.
#pragma once

#include <cstdint>

#include "base/checked.h"
#include "tensor/tensor.h"

namespace jackscrew {

// Each part begins at the next multiple of so many bytes.
inline constexpr int64_t kPartAlignment = 64;

// Places the parts of a matrix one after another. With a null base, as on the plan device, all
// parts are null and only bytes() counts.
class PartLayout {
 public:
  explicit PartLayout(void* base) : base_(static_cast<uint8_t*>(base)) {}
  template <class Element>
  Element* add(int64_t count) {
    const int64_t at = round_up(bytes_, kPartAlignment);
    bytes_ = checked_add(at, checked_mul(count, sizeof(Element)));
    return base_ == nullptr ? nullptr : reinterpret_cast<Element*>(base_ + at);
  }
  template <class Element>
  Tensor tensor(int64_t count) {
    return {add<Element>(count), DTypeOf<Element>::value, {count}};
  }
  int64_t bytes() const { return bytes_; }

 private:
  uint8_t* base_;
  int64_t bytes_ = 0;
};

}  // namespace jackscrew
