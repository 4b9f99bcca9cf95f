// Which rank does what, and which numbers of ranks are refused.
#include "parallel/layout.h"

#include <gtest/gtest.h>

#include <tuple>

#include "tests/support/errors.h"

namespace jackscrew {
namespace {

TEST(Layout, RanksOfAReplicaFollowEachOther) {
  const Layout layout = Layout::of(6, 3, 8);
  EXPECT_EQ(layout.stages, 3);
  EXPECT_EQ(layout.replicas, 2);
  EXPECT_EQ(layout.lanes, 8);
  EXPECT_EQ(layout.lanes_of_replica(), 4);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    EXPECT_EQ(layout.rank_of(layout.replica_of(rank), layout.stage_of(rank)), rank);
  }
  EXPECT_EQ(layout.rank_of(1, 0), 3);
  EXPECT_EQ(layout.rank_of(0, 2), 2);
}

TEST(Layout, OneLaneForEachReplicaWhereNobodyAsks) {
  EXPECT_EQ(Layout::of(1, 1, 0).lanes, 1);
  EXPECT_EQ(Layout::of(6, 2, 0).lanes, 3);
}

// A power of two of lanes in each replica, whatever the number of replicas.
TEST(Layout, LanesThatDivide) {
  for (int replicas = 1; replicas <= 9; ++replicas) {
    for (int64_t lanes = 1; lanes <= 72; ++lanes) {
      bool divides = false;
      for (int64_t of_replica = 1; of_replica <= 64; of_replica *= 2) {
        divides |= of_replica * replicas == lanes;
      }
      if (divides) {
        EXPECT_EQ(Layout::of(2 * replicas, 2, lanes).lanes, lanes);
      } else {
        expect_message(ErrorKind::usage, "cannot be divided",
                       [&] { Layout::of(2 * replicas, 2, lanes); });
      }
    }
  }
}

TEST(Layout, RefusalsSayWhichNumbersWouldDo) {
  const std::string stages = error_of(ErrorKind::usage, [] { Layout::of(6, 4, 0); });
  EXPECT_EQ(message_of(stages), "6 ranks cannot be divided into pipelines of 4 stages");
  EXPECT_EQ(hint_of(stages),
            "start 4 or a multiple of it, or set pipeline_stages to one of 1, 2, 3, 6");

  // 3 replicas of 4 lanes, 6 of 2, 12 of 1; twice as many ranks.
  const std::string lanes = error_of(ErrorKind::usage, [] { Layout::of(16, 2, 12); });
  EXPECT_NE(message_of(lanes).find("16 ranks have 8 copies of the model"), std::string::npos);
  EXPECT_EQ(hint_of(lanes),
            "start one of 6, 12, 24 ranks (plan takes ranks=6), or set data_parallel=8");
  for (const int ranks : {6, 12, 24}) EXPECT_EQ(Layout::of(ranks, 2, 12).lanes, 12);
  EXPECT_EQ(Layout::of(16, 2, 8).lanes, 8);

  const std::string one = error_of(ErrorKind::usage, [] { Layout::of(2, 1, 1); });
  EXPECT_EQ(message_of(one),
            "2 ranks have 2 copies of the model, over which 1 lane (data_parallel) cannot be "
            "divided: each needs 1, 2, 4, 8 ... of them");
  EXPECT_EQ(hint_of(one), "start 1 rank (plan takes ranks=1), or set data_parallel=2");
}

TEST(Layout, NonsenseIsRefused) {
  for (const auto& [ranks, stages, lanes] :
       {std::tuple{0, 1, 0}, {1, 0, 0}, {4, -2, 0}, {1, 1, -1}}) {
    expect_message(ErrorKind::usage, "no layout has",
                   [&, r = ranks, s = stages, l = lanes] { Layout::of(r, s, l); });
  }
  EXPECT_EQ(Layout::of(1, 1, int64_t{1} << 62).lanes_of_replica(), int64_t{1} << 62);
}

}  // namespace
}  // namespace jackscrew
