#include "tests/support/test_ops.h"

namespace jackscrew {

std::unique_ptr<Ops> make_test_ops(int threads) {
  return make_cpu_ops(threads, test_isa());
}

}  // namespace jackscrew
