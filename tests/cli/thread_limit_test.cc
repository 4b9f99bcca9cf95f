// A system that starts no threads, or has no addresses for them, through the program.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>

#include "tests/support/sanitizer.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

// As `ulimit -u` does, which does not bind root: for the rest of this process and what it becomes.
void refuse_to_start_threads() {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone3, 4, 0),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 0, 4),
                          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
                          BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 2),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{8, filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::_Exit(99);
  }
}

TEST(ThreadLimit, IsAnErrorOfOurs) {
  const TinyRun tiny("thread_limit");
  const auto become = [&](const std::string& arguments) {
    refuse_to_start_threads();
    const std::string command = "exec " + std::string(kProgram) + " " + arguments + " >/dev/null";
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
  };
  const std::string data = " data=" + tiny.data() + " sequence_len=64";
  const std::string read = "data stats tokenizer=bytes" + data;
  const std::string score = "eval init=random tokenizer=bytes model=" + tiny.config() + data;
  for (const std::string& command : {read, score}) {
    EXPECT_EXIT(become(command + " threads=3"), ::testing::ExitedWithCode(3),
                "the system starts no more threads\n.*set threads=1");
    EXPECT_EXIT(become(command + " threads=1"), ::testing::ExitedWithCode(0), "");
  }
}

// As many as there is room for, but not as many as are wanted.
TEST(ThreadLimit, CountsAllThatAreWanted) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer wants more than any limit on addresses leaves";
  const TinyRun tiny("thread_count");
  const auto with = [&](const std::string& threads) {
    return run_shell("ulimit -s 1048576 && ulimit -v 8388608 || exit 99; exec " +
                     std::string(kProgram) +
                     " eval init=random tokenizer=bytes model=" + tiny.config() +
                     " data=" + tiny.data() + " sequence_len=64 threads=" + threads + kErrorsOnly);
  };
  const Outcome few = with("3");
  if (few.exit_code == 99) GTEST_SKIP() << "no right to have stacks of 1 GiB";
  EXPECT_EQ(few.exit_code, 0) << few.out;
  const Outcome many = with("32");
  EXPECT_EQ(many.exit_code, 3) << many.out;
  EXPECT_NE(many.out.find("the system starts no more threads"), std::string::npos) << many.out;
}

// A heap for each thread would take what was there for the code of a product.
TEST(SlowThreadLimit, ThreadsTakeNoAddressesFromProducts) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer wants more than any limit on addresses leaves";
  const TinyRun tiny("thread_addresses");
  const auto within = [](int64_t mib, const std::string& arguments) {
    return run_shell("ulimit -v " + std::to_string(mib << 10) + " || exit 99; exec " +
                     std::string(kProgram) + " " + arguments + " 2>&1");
  };
  // Below that the program does not even start.
  int64_t least = 16;
  while (least < 1024 && within(least, "--version").exit_code != 0) least += 8;
  const std::string train =
      tiny.train("out", "method=full threads=4 max_steps=1 report_samples=0 overwrite=true");
  bool fits = false;
  for (int64_t more = 40; more <= 136; more += 4) {
    const Outcome outcome = within(least + more, train);
    fits = outcome.exit_code == 0;
    EXPECT_TRUE(fits || outcome.exit_code == 3)
        << least + more << " MiB: " << outcome.exit_code << "\n"
        << outcome.out;
  }
  EXPECT_TRUE(fits);
}

}  // namespace
}  // namespace jackscrew
