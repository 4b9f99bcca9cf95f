#include "report/tensorboard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "tests/support/errors.h"
#include "tests/support/resource_limit.h"
#include "tests/support/sanitizer.h"
#include "tests/support/tensorboard_decoder.h"

namespace jackscrew {
namespace {

class TensorBoardTest : public ::testing::Test {
 protected:
  TensorBoardTest()
      : directory_(fs::temp_directory_path() / ("jackscrew_tb_" + std::to_string(::getpid()))) {
    fs::create_directories(directory_);
  }
  ~TensorBoardTest() override { fs::remove_all(directory_); }

  fs::path directory_;
};

TEST_F(TensorBoardTest, FramesHoldVersionAndScalars) {
  TensorBoardWriter writer(directory_);
  writer.scalar("train/loss", 300, 1.25f);
  const auto records = frames(writer.path());
  ASSERT_EQ(records.size(), 2u);
  const auto version = decode(records[0]);
  ASSERT_EQ(version.size(), 3u);
  EXPECT_EQ(version[2].number, 3u);
  EXPECT_EQ(version[2].bytes, "brain.Event:2");
  const auto event = decode(records[1]);
  ASSERT_EQ(event.size(), 3u);
  EXPECT_EQ(event[0].number, 1u);
  EXPECT_GT(from_bytes<double>(event[0].bytes), 1.6e9);
  EXPECT_EQ(event[1].number, 2u);
  EXPECT_EQ(event[1].varint, 300u);
  EXPECT_EQ(event[2].number, 5u);
  const auto summary = decode(event[2].bytes);
  ASSERT_EQ(summary.size(), 1u);
  EXPECT_EQ(summary[0].number, 1u);
  const auto value = decode(summary[0].bytes);
  ASSERT_EQ(value.size(), 2u);
  EXPECT_EQ(value[0].number, 1u);
  EXPECT_EQ(value[0].bytes, "train/loss");
  EXPECT_EQ(value[1].number, 2u);
  EXPECT_EQ(from_bytes<float>(value[1].bytes), 1.25f);
}

TEST_F(TensorBoardTest, AResumedRunGoesOnInTheSameFileAndRestarts) {
  fs::path path;
  {
    TensorBoardWriter first(directory_);
    path = first.path();
    for (const int64_t step : {1, 200, 201, 300}) first.scalar("train/loss", step, 1.0f);
  }
  const auto whole = frames(path);
  FileWriter(path, WriteMode::append).write("torn");
  for (int resumes = 0; resumes < 3; ++resumes) {
    TensorBoardWriter again(directory_, 200);
    EXPECT_EQ(again.path(), path);
    const auto records = frames(path);
    ASSERT_EQ(records.size(), 4u);
    EXPECT_TRUE(std::equal(records.begin(), records.begin() + 3, whole.begin()));
    const auto restart = decode(records[3]);
    ASSERT_EQ(restart.size(), 3u);
    EXPECT_EQ(restart[1].varint, 201u);
    EXPECT_EQ(restart[2].number, 7u);
    const auto session = decode(restart[2].bytes);
    ASSERT_EQ(session.size(), 1u);
    EXPECT_EQ(session[0].number, 1u);
    EXPECT_EQ(session[0].varint, 1u);
    again.scalar("train/loss", 201, 1.0f);
    EXPECT_EQ(frames(path).size(), 5u);
  }
  // Of a damaged file the whole records before stay; where there are none, it begins anew.
  std::string bytes = read_text(path);
  bytes[bytes.size() - 30] = static_cast<char>(bytes[bytes.size() - 30] ^ 1);
  write_text_atomic(path, bytes);
  EXPECT_EQ(TensorBoardWriter(directory_, 1000).path(), path);
  EXPECT_EQ(frames(path).size(), 5u);
  bytes[3] = 1;
  write_text_atomic(path, bytes);
  EXPECT_EQ(TensorBoardWriter(directory_, 1000).path(), path);
  EXPECT_EQ(frames(path).size(), 2u);
}

TEST_F(TensorBoardTest, ARunFromTheStartReplacesOurFilesAlone) {
  write_text_atomic(directory_ / "events.out.tfevents.0000000001.jackscrew.0000", "old");
  write_text_atomic(directory_ / "events.out.tfevents.0000000001.other.0", "theirs");
  const TensorBoardWriter writer(directory_);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()), 2);
  EXPECT_EQ(frames(writer.path()).size(), 1u);
}

TEST_F(TensorBoardTest, ADirectoryThatCannotBeListedIsAnError) {
  if (kSanitized) GTEST_SKIP() << "UndefinedBehaviorSanitizer needs a descriptor, too";
  const ResourceLimit none(RLIMIT_NOFILE, 0);
  expect_message(ErrorKind::generic, "cannot list " + directory_.string() + ": ",
                 [&] { const TensorBoardWriter writer(directory_); });
}

TEST_F(TensorBoardTest, AMissingDirectoryIsAnError) {
  EXPECT_THROW(TensorBoardWriter(directory_ / "missing"), Error);
}

}  // namespace
}  // namespace jackscrew
