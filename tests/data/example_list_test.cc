// Lists that grow towards a memory limit.
#include "data/example_list.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class ExampleList : public ::testing::Test {
 protected:
  ExampleList()
      : root_(fs::temp_directory_path() / ("jackscrew_list_" + std::to_string(::getpid()))) {}
  ~ExampleList() override { fs::remove_all(root_); }

  void file(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    write_text_atomic(root_ / path, text);
  }

  const fs::path root_;  // of a tree as Linux shows limits
};

TEST_F(ExampleList, GrowsByLessThanAQuarterWhereThatIsLeft) {
  file("proc/self/mountinfo",
       "31 25 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  file("proc/self/cgroup", "0::/run.scope\n");
  file("sys/fs/cgroup/run.scope/memory.max", std::to_string(120 * kMiB) + "\n");
  file("sys/fs/cgroup/run.scope/memory.current", std::to_string(20 * kMiB) + "\n");
  file("sys/fs/cgroup/run.scope/memory.stat", "anon 1\n");
  const auto grown = [&](int64_t bytes) {
    return grown_capacity(static_cast<size_t>(bytes / 8), 8, kExamples, root_);
  };
  EXPECT_EQ(grown(64 * kMiB), static_cast<size_t>(80 * kMiB / 8));
  EXPECT_EQ(grown(96 * kMiB), static_cast<size_t>(96 * kMiB / 8 * 65 / 64));
  expect_error(ErrorKind::does_not_fit, "a list of 13107200 examples needs 101.6 MiB",
               [&] { grown(100 * kMiB); });
}

}  // namespace
}  // namespace jackscrew
