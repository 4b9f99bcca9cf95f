// Entry of every test program. --isa=LEVEL limits the CPU code under test to that level, exactly as
// the recipe key `isa` does; a level above this machine's ends with 77, which CTest shows as skipped.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
