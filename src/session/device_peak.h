// The device's peak throughput, to which a run's own is compared.
#pragma once

#include "kernels/ops.h"

namespace jackscrew {

struct DevicePeak {
  DType operands = DType::f32;  // or bf16
  double flops = 0.0;  // per second, two per multiply-add; 0: too little scratch memory to tell
};

// Measures large products with these operands on the device now.
DevicePeak measure_peak(Ops& ops, Arena& scratch, DType operands);

}  // namespace jackscrew
