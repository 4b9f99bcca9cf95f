// What every refusal looks like.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/run_program.h"

namespace jackscrew {

// Exactly one error line, holding `words`, and at most a hint beside it. Before it there may be
// warnings of options that the command does not use: tests share their settings.
inline void expect_refused(const Outcome& outcome, int exit_code,
                           const std::vector<std::string>& words) {
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.out;
  std::istringstream lines(outcome.out);
  std::string line;
  do {
    std::getline(lines, line);
  } while (line.starts_with("jackscrew: warning: ") &&
           line.find(" does not use ") != std::string::npos);
  EXPECT_TRUE(line.starts_with("jackscrew: error: ")) << outcome.out;
  for (const std::string& word : words) {
    EXPECT_NE(outcome.out.find(word), std::string::npos)
        << "no \"" << word << "\" in " << outcome.out;
  }
  if (std::getline(lines, line)) {
    EXPECT_TRUE(line.starts_with("hint: ")) << outcome.out;
  }
  EXPECT_FALSE(std::getline(lines, line)) << outcome.out;
}

}  // namespace jackscrew
