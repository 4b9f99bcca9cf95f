// Ops that bring 4 MiB of a weight into a product's arithmetic at a time, so that matrices of tests
// have several panels.
#pragma once

#include "tests/support/counting_ops.h"

namespace jackscrew {

class SmallPanelOps : public CountingOps {
 public:
  using CountingOps::CountingOps;
  int64_t panel_bytes() const override { return int64_t{4} << 20; }
};

}  // namespace jackscrew
