// Memory: the ledger, the budget, arenas, and bytes in files.
#include "tensor/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <new>

#include "base/map_guard.h"
#include "tensor/file_backing.h"
#include "tests/support/errors.h"
#include "tests/support/resource_limit.h"
#include "tests/support/sanitizer.h"

namespace jackscrew {
namespace {

int64_t booked(const Memory& memory, Purpose purpose) {
  return memory.ledger().current[static_cast<size_t>(purpose)];
}

TEST(Memory, BooksEveryByteUnderItsPurpose) {
  Memory memory("device", make_host_backing(), 0);
  memory.set_phase("load");
  Buffer weights = memory.allocate(Purpose::weights, 1000);
  EXPECT_EQ(booked(memory, Purpose::weights), 1024);  // rounded up to 64
  memory.set_phase("train");
  {
    const Buffer gradients = memory.allocate(Purpose::gradients, 64);
    EXPECT_EQ(memory.ledger().total, 1088);
  }
  EXPECT_EQ(booked(memory, Purpose::gradients), 0);
  EXPECT_EQ(memory.ledger().total, 1024);
  EXPECT_EQ(memory.ledger().peak, 1088);
  EXPECT_EQ(memory.ledger().peak_at, "train");
  EXPECT_EQ(memory.ledger().at_peak[static_cast<size_t>(Purpose::gradients)], 64);
  weights = Buffer();
  EXPECT_EQ(memory.ledger().total, 0);
}

TEST(Memory, BooksWhatIsHeldElsewhere) {
  Memory memory("host", make_host_backing(), 1024);
  {
    const Buffer held = memory.book(Purpose::staging, 1000);
    EXPECT_EQ(held.data(), nullptr);
    EXPECT_EQ(booked(memory, Purpose::staging), 1024);
    expect_message(ErrorKind::does_not_fit, "staging", [&] { memory.book(Purpose::staging, 1); });
  }
  EXPECT_EQ(memory.ledger().total, 0);
  EXPECT_EQ(memory.ledger().peak, 1024);
}

// An adapter of rank 1 has thousands of buffers that book 64 bytes.
TEST(Memory, SmallBuffersTakeLittleMoreThanTheyBook) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer puts room around each buffer";
  Memory memory("device", make_host_backing(), 0);
  const auto resident = [] {
    std::ifstream statm("/proc/self/statm");
    int64_t all = 0, pages = 0;
    statm >> all >> pages;
    return pages * ::sysconf(_SC_PAGESIZE);
  };
  const int64_t before = resident();
  std::vector<Buffer> buffers;
  for (int i = 0; i < 20000; ++i) buffers.push_back(memory.allocate(Purpose::adapters, 64));
  EXPECT_LT(resident() - before, 20000 * 256);
}

TEST(Memory, ARefusalNamesTheLimitOfTheProcess) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs address space without end";
  Memory memory("device", make_host_backing(), 0);
  const auto hint = [&] {
    return hint_of(error_of(ErrorKind::does_not_fit,
                            [&] { memory.allocate(Purpose::workspace, int64_t{1} << 46); }));
  };
  for (const auto& [resource, command] :
       {std::pair(RLIMIT_AS, "ulimit -v"), std::pair(RLIMIT_DATA, "ulimit -d")}) {
    const ResourceLimit limit(resource, rlim_t{64} << 30);
    EXPECT_EQ(hint(), fmt::format("raise the limit ({} is 64.00 GiB), or set device_memory to what "
                                  "it leaves",
                                  command));
    // Of a command that has no such budget.
    EXPECT_EQ(hint_of(error_of(ErrorKind::does_not_fit,
                               [&] {
                                 without_budget_hint([&] {
                                   memory.allocate(Purpose::workspace, int64_t{1} << 46);
                                 });
                               })),
              fmt::format("raise the limit ({} is 64.00 GiB)", command));
    EXPECT_EQ(error_of(std::bad_alloc()).hint(),
              fmt::format("raise the limit ({} is 64.00 GiB), or use a smaller model, batch or "
                          "sequence_len, or fewer threads",
                          command));
  }
}

TEST(Memory, IsZeroedAndAligned) {
  Memory memory("device", make_host_backing(), 0);
  for (const int64_t bytes : {1, 4096, 100'000, 3 << 20}) {
    const Buffer buffer = memory.allocate(Purpose::workspace, bytes);
    const auto* data = static_cast<const uint8_t*>(buffer.data());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
    EXPECT_TRUE(std::all_of(data, data + bytes, [](uint8_t byte) { return byte == 0; }));
  }
}

TEST(Memory, NeverExceedsItsBudget) {
  Memory memory("host", make_host_backing(), 1024);
  const Buffer first = memory.allocate(Purpose::weights, 512);
  expect_message(ErrorKind::does_not_fit, "masters",
                 [&] { memory.allocate(Purpose::masters, 513); });
  EXPECT_EQ(memory.ledger().total, 512);
  const Buffer second = memory.allocate(Purpose::masters, 512);
  EXPECT_EQ(memory.ledger().peak, 1024);
}

TEST(Memory, RefusesToAllocateWithinAStep) {
  Memory memory("device", make_plan_backing(), 0);
  {
    const NoAllocation step(memory);
    EXPECT_THROW(memory.allocate(Purpose::workspace, 1), Error);
  }
  EXPECT_NO_THROW(memory.allocate(Purpose::workspace, 1));
}

TEST(Arena, TheMeasuredHighWaterIsTheCapacityNeeded) {
  const auto use = [](Arena& arena) {
    const Tensor first = arena.tensor(DType::f32, {3, 5});
    {
      const Arena::Frame frame(arena);
      arena.tensor(DType::u8, {1000});
    }
    arena.tensor(DType::bf16, {7});
    return first;
  };
  Arena measuring = Arena::measuring();
  EXPECT_EQ(use(measuring).raw(), nullptr);
  Memory memory("device", make_host_backing(), 0);
  Arena arena(memory, Purpose::workspace, measuring.high_water());
  EXPECT_NE(use(arena).raw(), nullptr);
  EXPECT_EQ(arena.high_water(), measuring.high_water());
  EXPECT_THROW(arena.tensor(DType::u8, {measuring.high_water()}), Error);
}

class FileBackingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / fmt::format("jackscrew-masters-{}", ::getpid());
  }
  void TearDown() override { fs::remove_all(directory_); }

  int64_t files() const {
    return std::distance(fs::directory_iterator(directory_), fs::directory_iterator());
  }

  fs::path directory_;
};

TEST_F(FileBackingTest, KeepsEachPieceInAFile) {
  {
    Memory memory("disk", std::make_unique<FileBacking>(directory_), 0);
    Buffer first = memory.allocate(Purpose::masters, 10000);
    const Buffer second = memory.allocate(Purpose::masters, 64);
    EXPECT_EQ(files(), 2);
    std::memset(first.data(), 7, 10000);
    const fs::path path = memory.file_of(first.data());
    EXPECT_EQ(fs::file_size(path), 10048u);
    EXPECT_EQ(read_text(path).substr(0, 10000), std::string(10000, 7));
    // A second name keeps the bytes when the piece is given back.
    fs::create_hard_link(path, directory_ / "kept");
    first = Buffer();
    EXPECT_FALSE(fs::exists(path));
    EXPECT_EQ(read_text(directory_ / "kept").substr(0, 10000), std::string(10000, 7));
    EXPECT_NE(memory.file_of(second.data()), path);
  }
  // What others put there stays.
  EXPECT_EQ(files(), 1);
  EXPECT_TRUE(fs::exists(directory_ / "kept"));
}

TEST_F(FileBackingTest, RemovesWhatAKilledRunLeft) {
  fs::create_directories(directory_);
  write_text_atomic(directory_ / "00000000.bin", "old");
  Memory memory("disk", std::make_unique<FileBacking>(directory_), 0);
  EXPECT_EQ(files(), 0);
}

TEST_F(FileBackingTest, SaysThatTheDiskIsFullBeforeAnythingIsWritten) {
  Memory memory("disk", std::make_unique<FileBacking>(directory_), 0);
  {
    const NoRoom no_room;
    EXPECT_THROW(memory.allocate(Purpose::masters, 1 << 20), Error);
  }
  EXPECT_EQ(memory.ledger().total, 0);
  EXPECT_EQ(files(), 0);
}

TEST_F(FileBackingTest, SaysWhichFileLostItsBytes) {
  const BusErrors bus_errors;
  Memory memory("disk", std::make_unique<FileBacking>(directory_), 0);
  const Buffer first = memory.allocate(Purpose::masters, 1 << 16);
  const Buffer second = memory.allocate(Purpose::masters, 1 << 16);
  std::memset(second.data(), 7, 1 << 16);
  check_maps();
  fs::resize_file(memory.file_of(second.data()), 0);
  std::memset(second.data(), 8, 1 << 16);
  try {
    check_maps();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::model);
    EXPECT_TRUE(std::string(error.what()).starts_with(memory.file_of(second.data()).string()));
  }
}

}  // namespace
}  // namespace jackscrew
