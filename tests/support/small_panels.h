// Ops that bring 64 KiB of a weight into a product's arithmetic at a time, so that small matrices
// have several panels.
#pragma once

#include "tests/support/counting_ops.h"

namespace jackscrew {

class SmallPanelOps : public CountingOps {
 public:
  using CountingOps::CountingOps;
  int64_t panel_bytes() const override { return int64_t{64} << 10; }
};

}  // namespace jackscrew
