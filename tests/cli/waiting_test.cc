// How long idle threads spin. What it gains is measured, not tested: bench/waiting.py.
#include "cli/waiting.h"

#include <gtest/gtest.h>

namespace jackscrew {
namespace {

TEST(Waiting, SpinsOnlyWhereNobodyElseWantsTheCores) {
  EXPECT_EQ(spin_count(0, 1), 300);
  EXPECT_EQ(spin_count(0, 2), 300);
  EXPECT_EQ(spin_count(1, 2), 0);
  EXPECT_EQ(spin_count(1, 8), 300);
  EXPECT_EQ(spin_count(2, 16), 300);
  EXPECT_EQ(spin_count(3, 16), 0);
  EXPECT_EQ(spin_count(100, 2), 0);
}

}  // namespace
}  // namespace jackscrew
