// A terminal of a test's own.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>

namespace jackscrew {

// Opens the end of a person at one; the program's end is at ::ptsname() of it.
inline int open_terminal() {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  EXPECT_GE(terminal, 0);
  EXPECT_EQ(::grantpt(terminal) + ::unlockpt(terminal), 0);
  return terminal;
}

}  // namespace jackscrew
