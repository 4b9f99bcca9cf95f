// Who is taken for lost, with a clock and an MPI of the test's own.
#include "parallel/mpi/heartbeats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace jackscrew {
namespace {

using namespace std::chrono_literals;

// One rank's MPI. Sends are done at once, but for those to `stuck`.
struct FakeMpi {
  std::map<int, std::pair<int, uint8_t*>> receives;  // by peer: slot, byte
  std::map<int, std::vector<uint8_t>> sent;          // by peer
  std::vector<MpiDone> done;
  int stuck = -1;
};
FakeMpi fake;

int fake_send(const void* bytes, int, int to, int, int slot) {
  fake.sent[to].push_back(*static_cast<const uint8_t*>(bytes));
  if (to != fake.stuck) fake.done.push_back({.slot = slot, .error = 0, .truncated = 0, .bytes = 0});
  return 0;
}

int fake_receive(void* bytes, int, int from, int, int slot) {
  fake.receives[from] = {slot, static_cast<uint8_t*>(bytes)};
  return 0;
}

int fake_test(MpiDone* done, int* count) {
  std::copy(fake.done.begin(), fake.done.end(), done);
  *count = static_cast<int>(fake.done.size());
  fake.done.clear();
  return 0;
}

const MpiCalls kFakeCalls = {.version = kMpiCallsVersion,
                             .library = nullptr,
                             .error_text = nullptr,
                             .init = nullptr,
                             .host_names = nullptr,
                             .send = fake_send,
                             .receive = fake_receive,
                             .test = fake_test,
                             .finalize = nullptr,
                             .abort = nullptr};

enum State : uint8_t { working, closing, silent };

// Rank 0 of 3, with a timeout of 8 s.
class HeartbeatsOfThree : public testing::Test {
 protected:
  HeartbeatsOfThree() {
    fake = {};
    heartbeats_.emplace(requests_, 0, 3, 8s, 0s, now_);
  }

  // Another rank gives a sign of life.
  void sign_of(int rank, State state = working) {
    const auto [slot, byte] = fake.receives.at(rank);
    fake.receives.erase(rank);
    *byte = state;
    fake.done.push_back({.slot = slot, .error = 0, .truncated = 0, .bytes = 1});
  }

  // The communication thread comes by as it does. Returns who is lost.
  int pass(Heartbeats::Clock::duration time) {
    for (const auto end = now_ + time; now_ < end; now_ += 50ms) {
      if (const int lost = turn(); lost >= 0) return lost;
    }
    return -1;
  }

  int turn() {
    heartbeats_->beat(now_);
    requests_.poll();
    return heartbeats_->lost(now_);
  }

  std::vector<std::string> hosts_ = {"a", "b", "c"};
  Requests requests_{kFakeCalls, hosts_};
  Heartbeats::Clock::time_point now_{};
  std::optional<Heartbeats> heartbeats_;
};

// However long this rank waits itself: others may wait no longer than the least timeout.
TEST_F(HeartbeatsOfThree, FourSignsOfLifeInTheLeastTimeout) {
  pass(2 * kLeastTimeout);
  EXPECT_EQ(fake.sent[1], std::vector<uint8_t>(8, 0));
  EXPECT_EQ(fake.sent[2].size(), 8u);
  EXPECT_FALSE(fake.sent.contains(0));
}

TEST_F(HeartbeatsOfThree, WhoeverFallsSilentIsLost) {
  for (int second = 0; second < 20; ++second) {
    sign_of(1);
    if (second < 6) sign_of(2);
    const int lost = pass(1s);
    if (lost >= 0) {
      EXPECT_EQ(lost, 2);
      EXPECT_EQ(second, 5 + 8);
      return;
    }
  }
  FAIL() << "nobody is lost";
}

TEST_F(HeartbeatsOfThree, TimeInWhichThisProcessWasStoppedIsHeldAgainstNobody) {
  EXPECT_EQ(pass(5s), -1);
  now_ += 100s;
  EXPECT_EQ(pass(2s), -1);
  EXPECT_GE(pass(2s), 1);
}

TEST_F(HeartbeatsOfThree, NoSecondByteWhileOneIsUnderWay) {
  fake.stuck = 1;
  pass(5s);
  EXPECT_EQ(fake.sent[1].size(), 1u);
  EXPECT_EQ(fake.sent[2].size(), 20u);
}

TEST_F(HeartbeatsOfThree, RanksFallSilentTogether) {
  heartbeats_->close();
  turn();
  EXPECT_EQ(fake.sent[1].back(), closing);
  sign_of(1, closing);
  pass(2s);
  // Rank 2 still works: it must see that this one lives.
  EXPECT_EQ(fake.sent[2].back(), closing);
  EXPECT_FALSE(heartbeats_->all_silent());
  sign_of(2, closing);
  turn();
  turn();
  EXPECT_EQ(fake.sent[1].back(), silent);
  EXPECT_EQ(fake.sent[2].back(), silent);
  sign_of(1, silent);
  turn();
  EXPECT_FALSE(heartbeats_->all_silent());
  // Rank 1 has said its last; who is missing is rank 2.
  EXPECT_EQ(pass(20s), 2);
  sign_of(2, silent);
  turn();
  EXPECT_TRUE(heartbeats_->all_silent());
  EXPECT_TRUE(fake.receives.empty());
}

}  // namespace
}  // namespace jackscrew
