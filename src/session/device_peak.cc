#include "session/device_peak.h"

#include <algorithm>

#include "base/clock.h"

namespace jackscrew {

DevicePeak measure_peak(Ops& ops, Arena& scratch, DType operands) {
  // Operands of 4 MiB: on a CPU, products of this size run within 5 % of the fastest. Where one
  // takes less than kLong, larger ones may be faster, and the wait for it would be a part of its
  // time, so that several are timed together.
  constexpr int64_t kSize = 1024;
  constexpr double kLong = 2e-3;
  constexpr int kRuns = 5;
  DevicePeak peak{operands};
  for (int64_t size = kSize; 3 * size * size * 4 <= scratch.capacity(); size *= 2) {
    scratch.reset();
    const Tensor a = scratch.tensor(peak.operands, {size, size});
    const Tensor b = scratch.tensor(peak.operands, {size, size});
    const Tensor c = scratch.tensor(DType::f32, {size, size});
    ops.zero(a);
    ops.zero(b);
    const auto seconds_of = [&](int products) {
      const Stopwatch watch;
      for (int i = 0; i < products; ++i) {
        ops.gemm(a, Transpose::no, b, Transpose::no, c, Accumulate::no);
      }
      float last = 0.0f;  // its copy waits for the products
      ops.copy(Tensor(&last, DType::f32, {1, 1}), c.rows(0, 1).columns(0, 1));
      return watch.seconds();
    };
    seconds_of(1);  // the first call selects the algorithm
    const double once = seconds_of(1);
    const int products = once < kLong ? 1 + static_cast<int>(kLong / once) : 1;
    for (int run = 0; run < kRuns; ++run) {
      const auto cube = static_cast<double>(size * size * size);
      peak.flops = std::max(peak.flops, 2.0 * products * cube / seconds_of(products));
    }
    if (once >= kLong) break;
  }
  return peak;
}

}  // namespace jackscrew
