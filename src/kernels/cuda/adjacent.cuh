// Elements that a thread loads or stores at once.
#pragma once

#include <cstddef>

namespace jackscrew::cuda {

// A thread's widest load or store.
inline constexpr int kWidestBytes = 16;

// kCount elements at a multiple of their bytes; where these are more than one load has, of that.
template <class Element, int kCount>
struct alignas(kCount * sizeof(Element) < size_t{kWidestBytes} ? kCount * sizeof(Element)
                                                               : size_t{kWidestBytes}) Adjacent {
  Element elements[kCount];
};

}  // namespace jackscrew::cuda
