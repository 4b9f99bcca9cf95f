// How long idle threads spin. What it gains is measured, not tested: bench/waiting.py.
#include "cli/waiting.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

constexpr int64_t kLook = 100'000'000;  // nanoseconds

TEST(Waiting, OtherProgramsWantTheCoresWhileAThreadHasToWaitForOne) {
  Contention contention;
  contention.look(kLook / 100, kLook);
  EXPECT_FALSE(contention.found());
  contention.look(kLook / 2, kLook);
  EXPECT_TRUE(contention.found());
  // A pause of theirs is not their end.
  for (int i = 0; i < 19; ++i) contention.look(0, kLook);
  EXPECT_TRUE(contention.found());
  contention.look(kLook / 2, kLook);
  for (int i = 0; i < 19; ++i) contention.look(0, kLook);
  EXPECT_TRUE(contention.found());
  contention.look(0, kLook);
  EXPECT_FALSE(contention.found());
}

std::string first_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// Two programs on one core: each has to wait for it.
TEST(Waiting, ARunBesideAnotherProgramKeepsThreadsToSpare) {
  if (!fs::exists("/proc/self/schedstat")) {
    GTEST_SKIP() << "the kernel does not count how long threads wait for a core";
  }
  const TinyRun tiny("waiting_beside");
  ::unsetenv("OMP_WAIT_POLICY");
  ::unsetenv("GOMP_SPINCOUNT");
  const std::string one_core = "taskset -c $(taskset -cp $$ | sed 's/.*: //; s/[,-].*//')";
  const std::string long_run = "max_steps=20000 logging_steps=20000";
  Child child(tiny.train("out", long_run), "/dev/null", one_core);
  Child other(tiny.train("other", long_run), "/dev/null", one_core);
  const auto has_spare_threads = [&] {
    std::error_code gone;
    const fs::path threads = "/proc/" + std::to_string(child.pid()) + "/task";
    for (const auto& thread : fs::directory_iterator(threads, gone)) {
      if (first_line(thread.path() / "comm") == "spare") return true;
    }
    return false;
  };
  EXPECT_TRUE(child.until(has_spare_threads));
}

// `pkill -USR1 jackscrew` must find a run.
TEST(Waiting, KeepsTheNameOfTheProgram) {
  const TinyRun tiny("waiting");
  ::unsetenv("OMP_WAIT_POLICY");
  ::unsetenv("GOMP_SPINCOUNT");
  Child child(tiny.train("out", "max_steps=1000000 logging_steps=1000000"));
  const fs::path place = "/proc/" + std::to_string(child.pid());
  const auto has_begun = [&] { return fs::exists(tiny.path("out/train_log.jsonl")); };
  ASSERT_TRUE(child.until(has_begun));
  EXPECT_NE(first_line(place / "environ").find("GOMP_SPINCOUNT="), std::string::npos);
  EXPECT_EQ(first_line(place / "comm"), "jackscrew");
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
