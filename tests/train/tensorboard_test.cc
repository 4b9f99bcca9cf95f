#include "train/tensorboard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/error.h"
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

TEST_F(TensorBoardTest, AResumedRunWritesAFileThatSortsLaterAndRestarts) {
  const TensorBoardWriter first(directory_);
  const TensorBoardWriter second(directory_, 200);
  EXPECT_LT(first.path().string(), second.path().string());
  const auto records = frames(second.path());
  ASSERT_EQ(records.size(), 2u);
  const auto restart = decode(records[1]);
  ASSERT_EQ(restart.size(), 3u);
  EXPECT_EQ(restart[1].varint, 201u);
  EXPECT_EQ(restart[2].number, 7u);
  const auto session = decode(restart[2].bytes);
  ASSERT_EQ(session.size(), 1u);
  EXPECT_EQ(session[0].number, 1u);
  EXPECT_EQ(session[0].varint, 1u);
}

TEST_F(TensorBoardTest, AMissingDirectoryIsAnError) {
  EXPECT_THROW(TensorBoardWriter(directory_ / "missing"), Error);
}

}  // namespace
}  // namespace jackscrew
