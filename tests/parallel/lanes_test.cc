// Sums of lanes: the tree, whoever sums.
#include "parallel/lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <thread>

#include "parallel/peers.h"
#include "tests/support/test_ops.h"
#include "tests/support/values.h"

namespace jackscrew {
namespace {

using Floats = std::vector<float>;

// The gradient of a lane: of such different sizes that the order of a sum shows.
Floats lane_gradient(int64_t lane, int64_t size) {
  Floats out(static_cast<size_t>(size));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] =
        std::ldexp(1.0f + 0.37f * static_cast<float>((lane * 7 + static_cast<int64_t>(i)) % 11),
                   static_cast<int>((lane * 5) % 13) - 6);
  }
  return out;
}

// tree(n) = tree(p) + tree(n - p), as lanes.h says it.
Floats tree(int64_t first, int64_t count, int64_t size) {
  if (count == 1) return lane_gradient(first, size);
  const auto left = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count - 1)));
  Floats sum = tree(first, left, size);
  const Floats right = tree(first + left, count - left, size);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += right[i];
  return sum;
}

// What a place makes of lanes [first, first + count), in a window where `past` is given.
Floats sum_lanes(Ops& ops, int64_t first, int64_t count, int64_t size, const Floats* past) {
  Floats gradient(static_cast<size_t>(size), 0.0f);
  if (past != nullptr) gradient = *past;
  std::vector<Floats> sums(static_cast<size_t>(waiting_lane_sums(count)),
                           Floats(static_cast<size_t>(size)));
  Floats before(static_cast<size_t>(size));
  StateRef state{"w", past != nullptr ? StateRole::window : StateRole::gradient, view_of(gradient),
                 false};
  for (Floats& sum : sums) state.lane_sums.push_back(view_of(sum));
  if (past != nullptr) state.before_step = view_of(before);
  LaneSums lanes;
  lanes.watch({state});
  lanes.begin_step(ops);
  for (int64_t lane = 0; lane < count; ++lane) {
    const Floats added = lane_gradient(first + lane, size);
    for (size_t i = 0; i < added.size(); ++i) gradient[i] += added[i];
    lanes.end_lane(ops, lane + 1 == count);
  }
  lanes.end_step(ops);
  return gradient;
}

TEST(LaneSums, AreTheTree) {
  const auto ops = make_test_ops();
  bool order_shows = false;
  for (int64_t lanes = 1; lanes <= 9; ++lanes) {
    const Floats sum = sum_lanes(*ops, 0, lanes, 37, nullptr);
    EXPECT_EQ(sum, tree(0, lanes, 37)) << lanes;
    Floats in_turn(37, 0.0f);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const Floats added = lane_gradient(lane, 37);
      for (size_t i = 0; i < added.size(); ++i) in_turn[i] += added[i];
    }
    order_shows = order_shows || sum != in_turn;
  }
  EXPECT_TRUE(order_shows);
}

TEST(LaneSums, AWindowAddsToWhatItHeld) {
  const auto ops = make_test_ops();
  const Floats past = lane_gradient(20, 37);
  for (int64_t lanes = 1; lanes <= 5; ++lanes) {
    Floats want = tree(0, lanes, 37);
    for (size_t i = 0; i < want.size(); ++i) want[i] += past[i];
    EXPECT_EQ(sum_lanes(*ops, 0, lanes, 37, &past), want) << lanes;
  }
}

// Replicas that each sum their lanes, and then all of them.
TEST(Peers, SumOverReplicasWhatOneWouldSum) {
  constexpr int64_t kSize = 20011;  // in several parts that are not equal
  for (const auto& [replicas, lanes] :
       std::vector<std::pair<int, int64_t>>{{2, 2}, {2, 4}, {3, 3}, {3, 6}, {4, 8}, {5, 5}}) {
    const Layout layout = Layout::of(replicas, 1, lanes);
    const auto transports = make_in_process(replicas);
    std::vector<Floats> sums(static_cast<size_t>(replicas));
    std::vector<Traffic> sent(static_cast<size_t>(replicas));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < replicas; ++rank) {
      threads.emplace_back([&, rank] {
        const auto ops = make_test_ops();
        const auto at = static_cast<size_t>(rank);
        const int64_t own = layout.lanes_of_replica();
        sums[at] = sum_lanes(*ops, rank * own, own, kSize, nullptr);
        Memory memory("test", make_host_backing(), 0);
        Peers peers(transports[at].get(), layout, rank);
        peers.reserve(memory, kSize);
        // Two tensors, the second of which ends within a part.
        const Tensor all = view_of(sums[at]);
        peers.sum_over_replicas(*ops,
                                std::vector<Tensor>{all.columns(0, 33), all.columns(33, kSize)});
        sent[at] = peers.sent();
      });
    }
    for (std::thread& thread : threads) thread.join();
    const Floats want = tree(0, lanes, kSize);
    for (size_t rank = 0; rank < sums.size(); ++rank) {
      EXPECT_EQ(sums[rank], want) << rank << " of " << replicas << ", " << lanes << " lanes";
      const double each = 2.0 * (replicas - 1) / replicas * kSize * 4;
      EXPECT_NEAR(static_cast<double>(sent[rank].gradient), each, 4.0 * replicas);
    }
    // A rehearsal of any of them knows the most.
    int64_t most = 0;
    for (const Traffic& of_rank : sent) most = std::max(most, of_rank.gradient);
    for (int rank = 0; rank < replicas; ++rank) {
      const auto ops = make_test_ops();
      Memory memory("test", make_host_backing(), 0);
      Peers peers(nullptr, layout, rank);
      peers.reserve(memory, kSize);
      Floats unsent(kSize);
      peers.sum_over_replicas(*ops, std::vector<Tensor>{view_of(unsent)});
      EXPECT_EQ(peers.sent().gradient, most) << rank << " of " << replicas;
    }
  }
}

TEST(Peers, StagesAddInOrder) {
  const Layout layout = Layout::of(3, 3, 1);
  const auto transports = make_in_process(3);
  std::vector<double> sums(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Peers peers(transports[static_cast<size_t>(rank)].get(), layout, rank);
      sums[static_cast<size_t>(rank)] =
          peers.sum_over_stages([&](double before) { return before * 10 + rank + 1; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sums, std::vector<double>(3, 123.0));
}

}  // namespace
}  // namespace jackscrew
