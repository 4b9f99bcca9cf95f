// Lists that grow towards a memory limit.
#include "data/example_list.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/errors.h"
#include "tests/support/limit_tree.h"

namespace jackscrew {
namespace {

TEST(ExampleList, GrowsByLessThanAQuarterWhereThatIsLeft) {
  const LimitTree tree;
  tree.process(kMountedV2, "0::/run.scope\n");
  tree.group_v2("/run.scope", std::to_string(120 * kMiB), 20 * kMiB);
  const auto grown = [&](int64_t bytes) {
    return grown_capacity(static_cast<size_t>(bytes / 8), 8, kExamples, tree.root());
  };
  EXPECT_EQ(grown(64 * kMiB), static_cast<size_t>(80 * kMiB / 8));
  EXPECT_EQ(grown(96 * kMiB), static_cast<size_t>(96 * kMiB / 8 * 65 / 64));
  expect_error(ErrorKind::does_not_fit, "a list of 13107200 examples needs 101.6 MiB",
               [&] { grown(100 * kMiB); });
}

}  // namespace
}  // namespace jackscrew
