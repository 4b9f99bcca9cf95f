#include "tensor/file_backing.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/support/errors.h"
#include "tests/support/resource_limit.h"
#include "tests/support/sanitizer.h"
#include "tests/support/small_disk.h"

namespace jackscrew {
namespace {

constexpr size_t kBytes = 1 << 20;

class FileBackingRoomTest : public ::testing::Test {
 protected:
  FileBackingRoomTest()
      : root_(fs::temp_directory_path() / ("jackscrew_room_" + std::to_string(::getpid()))),
        directory_(root_ / "masters") {
    fs::create_directories(root_);
  }
  ~FileBackingRoomTest() override { fs::remove_all(root_); }

  static void* acquire_replaced(FileBacking& backing) {
    void* piece = backing.acquire(kBytes);
    backing.expect_replacement(piece);
    return piece;
  }
  // The next value in place of the last, as masters are stored.
  static void replace(FileBacking& backing, void*& data) {
    void* next = acquire_replaced(backing);
    const auto* bytes = static_cast<const uint8_t*>(next);
    EXPECT_TRUE(std::all_of(bytes, bytes + kBytes, [](uint8_t byte) { return byte == 0; }));
    std::memset(next, 7, kBytes);
    backing.release(data, kBytes);
    data = next;
  }

  fs::path root_, directory_;
};

// A process may have some 65000 maps, and as many bytes as `ulimit -v` says.
TEST_F(FileBackingRoomTest, NamesTheLimitsOfMaps) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs address space without end";
  FileBacking backing(directory_);
  {
    const ResourceLimit no_more(RLIMIT_AS, kBytes);
    expect_message(ErrorKind::does_not_fit, "Cannot allocate memory",
                   [&] { backing.acquire(kBytes); });
  }
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(FileBackingRoomTest, PiecesAreReplacedOneAtATime) {
  FileBacking backing(directory_);
  std::vector<void*> pieces = {acquire_replaced(backing), acquire_replaced(backing)};
  {
    const NoRoom full;
    EXPECT_THROW(backing.acquire(kBytes), Error);
  }
  backing.reserve(FileBacking::Replaced::one_at_a_time);
  {
    const NoRoom full;
    for (int i = 0; i < 6; ++i) replace(backing, pieces[static_cast<size_t>(i % 2)]);
    void* third = backing.acquire(kBytes);
    EXPECT_THROW(backing.acquire(kBytes), Error);
    backing.release(third, kBytes);
  }
  for (void* piece : pieces) backing.release(piece, kBytes);
}

TEST_F(FileBackingRoomTest, PiecesWithASecondNameAreReplacedOnceEach) {
  FileBacking backing(directory_);
  std::vector<void*> pieces = {acquire_replaced(backing), acquire_replaced(backing)};
  {
    const NoRoom full;
    EXPECT_THROW(backing.reserve(FileBacking::Replaced::each), Error);
  }
  for (int round = 0; round < 2; ++round) {
    backing.reserve(FileBacking::Replaced::each);
    for (size_t i = 0; i < pieces.size(); ++i) {
      fs::create_hard_link(backing.file_of(pieces[i]),
                           root_ / (std::to_string(round) + std::to_string(i)));
    }
    const NoRoom full;
    for (int i = 0; i < 6; ++i) replace(backing, pieces[static_cast<size_t>(i % 2)]);
  }
  for (void* piece : pieces) backing.release(piece, kBytes);
}

// Such as moments that are kept beside masters: nothing links them, and they are written in place.
TEST_F(FileBackingRoomTest, PiecesThatStayTakeNoRoomBesideTheirOwn) {
  FileBacking backing(directory_);
  std::vector<void*> pieces = {acquire_replaced(backing), backing.acquire(kBytes),
                               backing.acquire(2 * kBytes)};
  const auto files = [&] {
    return std::distance(fs::directory_iterator(directory_), fs::directory_iterator());
  };
  EXPECT_EQ(files(), 3);
  backing.reserve(FileBacking::Replaced::each);
  EXPECT_EQ(files(), 3 + 2) << "one for the piece that gets a second name, one for its successor";
  backing.reserve(FileBacking::Replaced::one_at_a_time);
  EXPECT_EQ(files(), 3 + 1);
  backing.release(pieces[2], 2 * kBytes);
  EXPECT_EQ(files(), 2 + 1);
  for (int i = 0; i < 2; ++i) backing.release(pieces[static_cast<size_t>(i)], kBytes);
}

// For which a run may wait.
TEST_F(FileBackingRoomTest, AFullDiskIsToldApart) {
  const SmallDisk disk(root_ / "disk", "512k");
  SKIP_UNLESS_MOUNTED(disk);
  FileBacking backing(root_ / "disk/masters");
  EXPECT_THROW(backing.acquire(kBytes), FullDisk);
}

// As of a rank whose directory has a file of that name.
TEST_F(FileBackingRoomTest, ADirectoryThatCannotBeMadeIsNamedWhole) {
  write_text_atomic(root_ / "file", "");
  const fs::path directory = fs::proximate(root_) / "file/masters";
  const std::string error = error_of(ErrorKind::generic, [&] { FileBacking backing(directory); });
  EXPECT_NE(message_of(error).find("cannot make /"), std::string::npos) << error;
  EXPECT_NE(message_of(error).find("file/masters: Not a directory"), std::string::npos) << error;
  EXPECT_NE(hint_of(error).find("master=ram"), std::string::npos) << error;
}

// The system may refuse for a while.
TEST_F(FileBackingRoomTest, RemovesAtTheEndWhatItCouldNotBefore) {
  {
    FileBacking backing(directory_);
    void* piece = backing.acquire(kBytes);
    const fs::path file = backing.file_of(piece);
    fs::remove(file);
    fs::create_directory(file);  // which unlink() refuses
    backing.release(piece, kBytes);
    fs::remove(file);
    write_text_atomic(file, "left");
  }
  EXPECT_FALSE(fs::exists(directory_));
}

// Nobody else's files are touched under the name that it had.
TEST_F(FileBackingRoomTest, FollowsItsDirectory) {
  {
    FileBacking backing(directory_);
    void* piece = acquire_replaced(backing);
    backing.reserve(FileBacking::Replaced::each);
    fs::rename(directory_, root_ / "moved");
    fs::create_directories(directory_);
    for (const char* name : {"00000000.bin", "00000001.bin", "00000002.bin", "00000003.bin"}) {
      write_text_atomic(directory_ / name, "mine");
    }
    replace(backing, piece);
    EXPECT_EQ(backing.file_of(piece).parent_path(), fs::canonical(root_ / "moved"));
    EXPECT_EQ(fs::file_size(backing.file_of(piece)), kBytes);
    backing.release(piece, kBytes);
  }
  EXPECT_FALSE(fs::exists(root_ / "moved"));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()), 4);
}

}  // namespace
}  // namespace jackscrew
