// Ranks as processes, started by mpirun as users start them. What they do is in ranks_test.cc.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <sstream>
#include <string>
#include <thread>

#include "base/file.h"
#include "parallel/transport.h"
#include "tests/cli/run_program.h"

namespace jackscrew {
namespace {

// Open MPI in a container, as root, on fewer cores than ranks; single copies want a system call
// that containers may not make. Sanitizers count what MPI never gives back. Shards are of this
// program's tests.
constexpr const char* kEnvironment =
    "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX OMPI_ALLOW_RUN_AS_ROOT=1 "
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
    "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_vader_single_copy_mechanism=none "
    "ASAN_OPTIONS=detect_leaks=0 timeout 120 mpirun --bind-to none";

// Fast enough for every run of the tests.
class Mpi : public testing::Test {
 protected:
  void SetUp() override {
    const TransportReport report = transport_report();
    if (!report.found) GTEST_SKIP() << report.text;
    if (run_shell("mpirun --version 2>&1").exit_code != 0) GTEST_SKIP() << "there is no mpirun";
  }

  // A test of ranks_test.cc, by `ranks` processes; `options` are mpirun's.
  static Outcome run_ranks(int ranks, const std::string& test, const std::string& options = {}) {
    const std::string self = fs::read_symlink("/proc/self/exe").string();
    Outcome out =
        run_shell(fmt::format("{} -n {} {} {} --gtest_brief=1 --gtest_also_run_disabled_tests "
                              "--gtest_filter=DISABLED_Ranks.{} </dev/null 2>&1",
                              kEnvironment, ranks, options, self, test));
    expect_gone(out.out);
    return out;
  }

  static void expect_passed(int ranks, const std::string& test, const std::string& options = {}) {
    const Outcome outcome = run_ranks(ranks, test, options);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    expect_part(outcome, "1 test from 1 test suite ran");
  }

  static void expect_part(const Outcome& outcome, const std::string& part) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " is not in:\n" << outcome.out;
  }

 private:
  // mpirun may end a moment before those that it kills.
  static bool ends_within_seconds(int process) {
    for (int tries = 0; tries < 500; ++tries) {
      if (::kill(process, 0) != 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  // No process is left of those that said who they are.
  static void expect_gone(const std::string& text) {
    std::istringstream lines(text);
    for (std::string word; lines >> word;) {
      int process = 0;
      if (word != "process" || !(lines >> process)) {
        lines.clear();
        continue;
      }
      EXPECT_TRUE(ends_within_seconds(process)) << process << " is left of:\n" << text;
    }
  }
};

class SlowMpi : public Mpi {};

TEST_F(Mpi, MessagesInPieces) {
  expect_passed(2, "ManyPieces");
}

TEST_F(Mpi, NoThreadOfItTakesSignals) {
  expect_passed(2, "NoThreadOfMpiTakesSignals");
}

TEST_F(SlowMpi, MessagesOfFour) {
  expect_passed(4, "ManyPieces");
  expect_passed(4, "TagsPassEachOther");
}

TEST_F(SlowMpi, LargeMessagesToAllAtOnce) {
  expect_passed(2, "LargeMessages");
  expect_passed(4, "LargeMessages");
}

// Over TCP, as between machines.
TEST_F(SlowMpi, LargeMessagesByTheNetwork) {
  expect_passed(2, "LargeMessages", "--mca btl tcp,self");
}

TEST_F(SlowMpi, MessagesOfAnotherSize) {
  EXPECT_EQ(run_ranks(2, "TooLong").exit_code, 7);
  EXPECT_EQ(run_ranks(2, "TooShort").exit_code, 7);
}

TEST_F(SlowMpi, BusyIsNotLost) {
  expect_passed(3, "BusyIsNotLost");
}

TEST_F(SlowMpi, ARankThatIsStoppedIsNamedAndAllEnd) {
  const Outcome outcome = run_ranks(3, "OneStops");
  EXPECT_EQ(outcome.exit_code, 7) << outcome.out;
  expect_part(outcome, "rank 0 knows");
}

TEST_F(SlowMpi, ARankThatIsKilledEndsAll) {
  EXPECT_EQ(run_ranks(3, "OneIsKilled").exit_code, 128 + SIGKILL);
}

// Where mpirun does not see to it, ranks see for themselves.
TEST_F(SlowMpi, ARankThatIsKilledIsNamed) {
  expect_part(run_ranks(3, "OneIsKilled", "--enable-recovery"), "rank 0 knows");
}

TEST_F(SlowMpi, AnAbortEndsAllWithItsCode) {
  EXPECT_EQ(run_ranks(4, "OneFails").exit_code, 6);
}

}  // namespace
}  // namespace jackscrew
