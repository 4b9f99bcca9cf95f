// Limits of control groups, in trees of files as Linux shows them.
#include "base/process_memory.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "tests/support/limit_tree.h"

namespace jackscrew {
namespace {

constexpr const char* kMountedV1 =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw shared:4 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

class MemoryLimits : public ::testing::Test, protected LimitTree {
 protected:
  void group_v1(const std::string& group, int64_t limit, int64_t used,
                const std::string& stat = "total_rss 1\n") const {
    const std::string directory = "sys/fs/cgroup/memory" + group;
    file(directory + "/memory.limit_in_bytes", std::to_string(limit) + "\n");
    file(directory + "/memory.usage_in_bytes", std::to_string(used) + "\n");
    file(directory + "/memory.stat", stat);
  }
  void expect_limit(int64_t bytes, int64_t available, const std::string& group) const {
    const auto limit = memory_limit(root());
    ASSERT_TRUE(limit);
    EXPECT_EQ(limit->bytes, bytes);
    EXPECT_EQ(limit->available, available);
    EXPECT_EQ(limit->group, root() / group);
  }
};

TEST_F(MemoryLimits, OfTheProcessesOwnGroup) {
  process(kMountedV2, "0::/user.slice/run.scope\n");
  group_v2("/user.slice", "max", 5000 * kMiB);
  group_v2("/user.slice/run.scope", std::to_string(120 * kMiB), 20 * kMiB);
  expect_limit(120 * kMiB, 100 * kMiB, "sys/fs/cgroup/user.slice/run.scope");
}

TEST_F(MemoryLimits, AreLookedAtBeforeMemoryIsTaken) {
  process(kMountedV2, "0::/run.scope\n");
  group_v2("/run.scope", std::to_string(120 * kMiB), 20 * kMiB);
  require_memory(100 * kMiB, "a list", "shorten it", root());
  try {
    require_memory(100 * kMiB + 1, "a list", "shorten it", root());
    FAIL() << "more than is left";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
    EXPECT_NE(std::string(error.what()).find("a list needs 100.0 MiB"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("limit of 120.0 MiB"), std::string::npos)
        << error.what();
    EXPECT_EQ(error.hint(), "shorten it");
  }
  // So little is not looked at.
  group_v2("/run.scope", std::to_string(120 * kMiB), 120 * kMiB);
  require_memory(kMiB, "a list", "shorten it", root());
}

// Slurm: the limit is the job's, the process is in a step's task.
TEST_F(MemoryLimits, OfAGroupAroundIt) {
  process(kMountedV2, "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n");
  const std::string job = "/system.slice/slurmstepd.scope/job_7";
  group_v2(job + "/step_0/user/task_0", "max", 10 * kMiB);
  group_v2(job + "/step_0", std::to_string(300 * kMiB), 10 * kMiB);
  group_v2(job, std::to_string(200 * kMiB), 50 * kMiB);
  expect_limit(200 * kMiB, 150 * kMiB, "sys/fs/cgroup" + job);
}

TEST_F(MemoryLimits, PagesOfFilesGiveWay) {
  process(kMountedV2, "0::/a\n");
  group_v2("/a", std::to_string(100 * kMiB), 90 * kMiB,
           "anon 1\ninactive_file " + std::to_string(60 * kMiB) + "\nactive_file " +
               std::to_string(10 * kMiB) + "\nfile 999\n");
  expect_limit(100 * kMiB, 80 * kMiB, "sys/fs/cgroup/a");
}

TEST_F(MemoryLimits, OfVersion1) {
  process(kMountedV1, "4:memory:/slurm/uid_0/job_7\n1:cpu,cpuacct:/other\n0::/\n");
  constexpr int64_t kNone = 0x7FFFFFFFFFFFF000;
  group_v1("", kNone, 500 * kMiB);
  group_v1("/slurm", kNone, 500 * kMiB);
  group_v1("/slurm/uid_0", 120 * kMiB, 50 * kMiB,
           "inactive_file 1\ntotal_inactive_file " + std::to_string(30 * kMiB) + "\n");
  group_v1("/slurm/uid_0/job_7", kNone, 20 * kMiB);
  expect_limit(120 * kMiB, 100 * kMiB, "sys/fs/cgroup/memory/slurm/uid_0");
}

// Its own group is what it sees at the mount, and /proc calls it as the host does.
TEST_F(MemoryLimits, OfAContainer) {
  process("35 31 0:32 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
          "4:memory:/docker/1f/inner\n");
  group_v1("", 500 * kMiB, 0);
  group_v1("/inner", 300 * kMiB, 0);
  expect_limit(300 * kMiB, 300 * kMiB, "sys/fs/cgroup/memory/inner");
  process("35 31 0:32 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
          "4:memory:/docker/1f\n");
  expect_limit(500 * kMiB, 500 * kMiB, "sys/fs/cgroup/memory");
  process("35 31 0:32 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
          "4:memory:/\n");
  expect_limit(500 * kMiB, 500 * kMiB, "sys/fs/cgroup/memory");
}

TEST_F(MemoryLimits, AFullGroupHasNextToNothingLeft) {
  process(kMountedV2, "0::/a\n");
  group_v2("/a", std::to_string(100 * kMiB), 101 * kMiB);
  expect_limit(100 * kMiB, 1, "sys/fs/cgroup/a");
}

TEST_F(MemoryLimits, AreAbsentWhereNothingLimits) {
  EXPECT_FALSE(memory_limit(root()));
  process(kMountedV2, "0::/a/b\n");
  EXPECT_FALSE(memory_limit(root()));
  group_v2("/a/b", "max", kMiB);
  EXPECT_FALSE(memory_limit(root()));
  process("25 1 0:22\n- - -\n\n31 25 0:27 / / rw - cgroup2\n", "0\n:\n0:\n");
  EXPECT_FALSE(memory_limit(root()));
}

// procfs has no room for files of anybody.
TEST(FilesInMemory, AreThoseOfATmpfs) {
  EXPECT_FALSE(files_take_memory("/proc/self/status"));
  EXPECT_FALSE(files_take_memory("/proc/there/is/none"));
  if (!fs::exists("/dev/shm") || fs::space("/dev/shm").capacity == 0) {
    GTEST_SKIP() << "no tmpfs at /dev/shm";
  }
  EXPECT_TRUE(files_take_memory("/dev/shm"));
  EXPECT_TRUE(files_take_memory("/dev/shm/jackscrew_none/of/these"));
}

}  // namespace
}  // namespace jackscrew
