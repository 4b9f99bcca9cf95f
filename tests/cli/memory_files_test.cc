// Files that take memory, in a tmpfs, under a limit of a control group, through the program.
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/process_memory.h"
#include "tests/cli/expect_refused.h"
#include "tests/support/memory_group.h"
#include "tests/support/sanitizer.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

// A directory in memory that goes with the object; `path` is empty where there is no room for one.
class DirectoryInMemory {
 public:
  explicit DirectoryInMemory(const std::string& name) {
    constexpr uintmax_t kEnough = uintmax_t{1} << 30;
    const fs::path root = "/dev/shm";
    std::error_code error;
    if (!files_take_memory(root) || fs::space(root, error).available < kEnough || error) return;
    path_ = root / ("jackscrew_" + name + "_" + std::to_string(::getpid()));
    if (!fs::create_directory(path_, error)) path_.clear();
  }
  ~DirectoryInMemory() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  DirectoryInMemory(const DirectoryInMemory&) = delete;
  DirectoryInMemory& operator=(const DirectoryInMemory&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// 160 MiB of weights, gradients and moments; two checkpoints and the result are some 240 MiB.
constexpr const char* kFilesRun =
    "model=llama-9m method=full max_steps=2 save_steps=1 threads=1 sequence_len=64 "
    "report_samples=0";

TEST(SlowMemoryFiles, CountTowardsTheLimitOfARun) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_files");
  if (files_take_memory(tiny.path("out"))) GTEST_SKIP() << "temporary files are in memory";
  const DirectoryInMemory memory("memory_files");
  if (memory.path().empty()) GTEST_SKIP() << "no room in memory at /dev/shm";
  const std::string in_memory = (memory.path() / "out").string();
  const std::string settings = tiny.settings(kFilesRun);
  const std::string plan = run("plan --json " + settings).out;
  const auto peak = nlohmann::json::parse(plan)["device"]["peak"].get<int64_t>();
  {
    const MemoryGroup tight(peak + (int64_t{120} << 20));
    if (tight.path().empty()) GTEST_SKIP() << "no right to make a control group";
    expect_refused(
        tight.run_within("train --quiet " + settings + " output_dir=" + in_memory + kErrorsOnly), 3,
        {"files of output_dir, which is in memory (tmpfs)", "memory limit of",
         "give an output_dir on a disk"});
    EXPECT_FALSE(fs::exists(in_memory + "/train_log.jsonl"));
    const Outcome on_disk = tight.run_within("train " + settings +
                                             " output_dir=" + tiny.path("out").string() + " 2>&1");
    EXPECT_EQ(on_disk.exit_code, 0) << on_disk.out;
  }
  const MemoryGroup enough(peak + (int64_t{480} << 20));
  const Outcome outcome =
      enough.run_within("train " + settings + " output_dir=" + in_memory + " 2>&1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
}

TEST(SlowMemoryFiles, CountTowardsTheLimitOfAnExport) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const DirectoryInMemory memory("memory_export");
  if (memory.path().empty()) GTEST_SKIP() << "no room in memory at /dev/shm";
  const TinyRun tiny("memory_export");
  tiny.must_train("base", "max_steps=1 method=full model=llama-9m report_samples=0");
  const MemoryGroup tight(int64_t{60} << 20);
  if (tight.path().empty()) GTEST_SKIP() << "no right to make a control group";
  const fs::path output = memory.path() / "model";
  const std::string needs = "this needs ";
  const Outcome refused = tight.run_within(
      "export tokenizer=bytes threads=1 --quiet format=hf model=" + tiny.path("base").string() +
      " output_dir=" + output.string() + kErrorsOnly);
  expect_refused(
      refused, 3,
      {needs, "memory limit of 60.0 MiB", "is in memory (tmpfs): give an output on a disk"});
  EXPECT_TRUE(fs::is_empty(memory.path()));
  // Its files, and with them two panels of 4 MiB: of values, and as they are written.
  const size_t number = refused.out.find(needs);
  ASSERT_NE(number, std::string::npos);
  const double files = static_cast<double>(fs::file_size(tiny.path("base/model.safetensors")));
  EXPECT_GT(std::stod(refused.out.substr(number + needs.size())), files / (1 << 20) + 6);
}

TEST(MemoryFiles, APlanSaysSo) {
  const DirectoryInMemory memory("memory_plan");
  if (memory.path().empty()) GTEST_SKIP() << "no room in memory at /dev/shm";
  const TinyRun tiny("memory_plan");
  const std::string line = "output_dir is in memory (tmpfs)";
  const std::string there =
      run("plan " + tiny.settings("output_dir=" + memory.path().string())).out;
  EXPECT_NE(there.find(line), std::string::npos) << there;
  EXPECT_EQ(run("plan " + tiny.settings()).out.find(line), std::string::npos);
}

}  // namespace
}  // namespace jackscrew
