// How long idle threads spin. What it gains is measured, not tested: bench/waiting.py.
#include "cli/waiting.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/support/tiny_run.h"

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

// `pkill -USR1 jackscrew` must find a run.
TEST(Waiting, KeepsTheNameOfTheProgram) {
  const TinyRun tiny("waiting");
  ::unsetenv("OMP_WAIT_POLICY");
  ::unsetenv("GOMP_SPINCOUNT");
  Child child(tiny.train("out", "max_steps=1000000 logging_steps=1000000"));
  const std::string place = "/proc/" + std::to_string(child.pid());
  const auto first_line = [&](const char* file) {
    std::ifstream in(place + file);
    std::string line;
    std::getline(in, line);
    return line;
  };
  const auto has_begun = [&] { return fs::exists(tiny.path("out/train_log.jsonl")); };
  ASSERT_TRUE(child.until(has_begun));
  EXPECT_NE(first_line("/environ").find("GOMP_SPINCOUNT="), std::string::npos);
  EXPECT_EQ(first_line("/comm"), "jackscrew");
}

// As programs that bring a C library of their own are.
TEST(Waiting, AProgramThatTheLoaderWasAskedToStartRuns) {
  const Outcome version =
      run_shell("env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT /lib64/ld-linux-x86-64.so.2 " +
                std::string(kProgram) + " --version 2>&1");
  EXPECT_EQ(version.exit_code, 0) << version.out;
  EXPECT_EQ(version.out, run("--version").out);
}

}  // namespace
}  // namespace jackscrew
