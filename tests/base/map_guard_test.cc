// Files that are cut short while they are mapped: zeros and an error in place of the end of the
// process.
#include "base/map_guard.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/parallel.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

constexpr size_t kSize = size_t{1} << 20;

class MapGuards : public ::testing::Test {
 protected:
  MapGuards()
      : path_(fs::temp_directory_path() / ("jackscrew_map_guard_" + std::to_string(::getpid()))) {
    write_text_atomic(path_, std::string(kSize, 'x'));
  }
  ~MapGuards() override { fs::remove(path_); }

  void cut() const { fs::resize_file(path_, 0); }
  // Whether bytes of the file were lost, so far.
  static bool lost(const MappedFile& file) {
    try {
      check_map(file.bytes().data());
      check_maps();
      return false;
    } catch (const Error&) {
      return true;
    }
  }

  const BusErrors bus_errors_;
  const fs::path path_;
};

TEST_F(MapGuards, AFileCutShortReadsAsZerosAndSaysSo) {
  const MappedFile file(path_);
  const uint8_t* const data = file.bytes().data();
  EXPECT_EQ(data[0], 'x');
  EXPECT_FALSE(lost(file));
  cut();
  EXPECT_EQ(data[0], 0);
  EXPECT_EQ(data[kSize - 1], 0);
  const std::string message = path_.string() + ": the file was cut short";
  expect_message(ErrorKind::model, message, [&] { check_map(data); });
  expect_message(ErrorKind::model, message, [&] { check_maps(); });
  expect_message(ErrorKind::data, message, [&] { check_map(data, ErrorKind::data); });
  expect_message(ErrorKind::model, message, [&] { check_map(data + 100); });
  check_map(data + kSize);  // not of this map
  expect_message(ErrorKind::model, message, [&] { file.release(0, 4096); });
}

TEST_F(MapGuards, WhatWasReadOfALostFileIsAnErrorOfTheFile) {
  const MappedFile file(path_);
  // Not dropped by the compiler where nobody uses what was read.
  const auto first = [&] { return *static_cast<const volatile uint8_t*>(file.bytes().data()); };
  EXPECT_EQ(read_whole(file, first), 'x');
  cut();
  expect_message(ErrorKind::data, "cut short", [&] { read_whole(file, first, ErrorKind::data); });
  expect_message(ErrorKind::model, "cut short", [&] {
    read_whole(file, [&]() -> int { fail(ErrorKind::model, "no {{ but {}", file.bytes()[0]); });
  });
}

TEST_F(MapGuards, WhatIsLeftOfAFileStays) {
  const MappedFile file(path_);
  fs::resize_file(path_, kSize / 2);
  EXPECT_EQ(file.bytes()[kSize / 2 - 1], 'x');
  EXPECT_FALSE(lost(file));
  EXPECT_EQ(file.bytes()[kSize / 2], 0);
  EXPECT_EQ(file.bytes()[kSize / 2 - 1], 'x');
  EXPECT_TRUE(lost(file));
}

// No signal tells of it: the rest of that page reads as zeros.
TEST_F(MapGuards, AFileCutShortWithinItsLastPageIsLost) {
  constexpr size_t kOddSize = 6144;  // one page and a half
  write_text_atomic(path_, std::string(kOddSize, 'x'));
  const MappedFile file(path_);
  const uint8_t* const data = file.bytes().data();
  check_map(data);
  fs::resize_file(path_, kOddSize - 50);
  EXPECT_EQ(data[kOddSize - 1], 0);
  const std::string message = path_.string() + ": the file was cut short";
  expect_message(ErrorKind::model, message, [&] { check_map(data); });
  expect_message(ErrorKind::data, message, [&] { check_map(data + 100, ErrorKind::data); });
  expect_message(ErrorKind::model, message, [&] { file.release(0, kOddSize); });
  check_pages(data);  // none is lost
  check_maps();       // it may have been read before
  read_in_place(data);
  expect_message(ErrorKind::model, message, [&] { check_maps(); });
}

TEST_F(MapGuards, AFileThatWasReplacedOrRemovedIsNotLost) {
  const MappedFile file(path_);
  const uint8_t* const data = file.bytes().data();
  read_in_place(data);
  write_text_atomic(path_, "short");
  check_map(data);
  check_maps();
  fs::remove(path_);
  check_map(data);
  check_maps();
  EXPECT_EQ(data[kSize - 1], 'x');
}

TEST_F(MapGuards, EveryThreadOfThePoolIsGuarded) {
  const MappedFile file(path_);
  cut();
  std::vector<int> sums(64);
  parallel_for(4, 64, [&](int64_t task, int) {
    for (size_t i = 0; i < kSize / 64; ++i) {
      sums[static_cast<size_t>(task)] += file.bytes()[static_cast<size_t>(task) * kSize / 64 + i];
    }
  });
  EXPECT_EQ(std::count(sums.begin(), sums.end(), 0), 64);
  EXPECT_TRUE(lost(file));
}

TEST_F(MapGuards, FollowTheirFileAndEndWithIt) {
  {
    MappedFile first(path_);
    MappedFile second;
    second = std::move(first);
    const MappedFile file(std::move(second));
    cut();
    EXPECT_EQ(file.bytes()[7], 0);
    EXPECT_TRUE(lost(file));
  }
  write_text_atomic(path_, std::string(kSize, 'y'));
  const MappedFile other(path_);
  EXPECT_EQ(other.bytes()[7], 'y');
  EXPECT_FALSE(lost(other));
}

// The rest of memory, and programs that have not asked.
TEST_F(MapGuards, OtherBusErrorsEndTheProcessAsEver) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer handles SIGBUS by itself";
#endif
  const auto signal_of = [&](bool guarded) {
    const pid_t child = ::fork();
    if (child == 0) {
      MappedFile file(path_);
      if (!guarded) std::signal(SIGBUS, SIG_DFL);
      if (guarded) {
        ::raise(SIGBUS);
        ::_exit(0);
      }
      cut();
      const volatile uint8_t* bytes = file.bytes().data();
      ::_exit(bytes[0]);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  };
  EXPECT_EQ(signal_of(false), SIGBUS);
  EXPECT_EQ(signal_of(true), SIGBUS);
}

// As generated code does (base/signals.h): reads `from` with the stack pointer at `stack`.
uint8_t read_on_stack(const uint8_t* from, std::byte* stack) {
  uint8_t value = 1;
  asm volatile(
      "mov %%rsp, %%r12\n"
      "mov %[stack], %%rsp\n"
      "movb (%[from]), %[value]\n"
      "mov %%r12, %%rsp\n"
      : [value] "=&r"(value)
      : [stack] "r"(stack), [from] "r"(from)
      : "r12", "memory");
  return value;
}

TEST_F(MapGuards, WriteNothingWhereTheStackPointerIsInTheHeap) {
  const MappedFile file(path_);
  cut();
  constexpr int64_t kTasks = 16;
  std::vector<int64_t> changed(kTasks, -1);
  parallel_for(4, kTasks, [&](int64_t task, int) {
    std::vector<std::byte> heap(size_t{1} << 16, std::byte{0x5A});
    ensure_signal_stack();
    std::byte* const stack = heap.data() + heap.size() / 2;
    EXPECT_EQ(read_on_stack(file.bytes().data() + static_cast<size_t>(task) * 4096, stack), 0);
    changed[static_cast<size_t>(task)] =
        std::count_if(heap.begin(), heap.end(), [](std::byte b) { return b != std::byte{0x5A}; });
  });
  for (const int64_t count : changed) EXPECT_EQ(count, 0);
}

TEST_F(MapGuards, WhatIsNoOrdinaryFileIsNotWaitedFor) {
  const fs::path pipe = path_.string() + ".pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto refusal = [](const fs::path& path) {
    return message_of(error_of(ErrorKind::model, [&] { MappedFile file(path); }));
  };
  EXPECT_EQ(refusal(pipe), pipe.string() + " is a pipe, not a file");
  EXPECT_EQ(refusal("/dev/null"), "/dev/null is a device, not a file");
  EXPECT_EQ(refusal("/tmp"), "/tmp is a directory, not a file");
  fs::remove(pipe);
}

}  // namespace
}  // namespace jackscrew
