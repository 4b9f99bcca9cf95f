// One forward, one backward: beside its definition, by the clock, and run for real over a network
// whose sends end no sooner than they are received.
#include "parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <thread>

#include "parallel/transport.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

constexpr int kMostStages = 8;
constexpr int64_t kMostMicroBatches = 32;

void for_every_shape(const std::function<void(int stages, int64_t micro_batches)>& look) {
  for (int stages = 1; stages <= kMostStages; ++stages) {
    for (int64_t micro_batches = 1; micro_batches <= kMostMicroBatches; ++micro_batches) {
      SCOPED_TRACE(fmt::format("{} stages, {} micro-batches", stages, micro_batches));
      look(stages, micro_batches);
    }
  }
}

TEST(Schedule, EveryMicroBatchForwardThenBackwardInAscendingOrder) {
  for_every_shape([](int stages, int64_t micro_batches) {
    for (int stage = 0; stage < stages; ++stage) {
      int64_t forward = 0, backward = 0;
      for (const Turn& turn : one_forward_one_backward(stage, stages, micro_batches)) {
        if (turn.work == Work::forward) {
          EXPECT_EQ(turn.micro_batch, forward++);
        } else {
          EXPECT_EQ(turn.micro_batch, backward++);
          EXPECT_LE(backward, forward);
        }
      }
      EXPECT_EQ(forward, micro_batches);
      EXPECT_EQ(backward, micro_batches);
    }
  });
}

TEST(Schedule, SlotsAreFreeWhenTheyAreTaken) {
  for_every_shape([](int stages, int64_t micro_batches) {
    for (int stage = 0; stage < stages; ++stage) {
      const int64_t flights = flights_of(stage, stages, micro_batches);
      EXPECT_EQ(flights, std::min<int64_t>(micro_batches, stages - stage));
      std::map<int64_t, int64_t> in_flight;  // slot -> micro-batch
      size_t most = 0;
      for (const Turn& turn : one_forward_one_backward(stage, stages, micro_batches)) {
        EXPECT_GE(turn.slot, 0);
        EXPECT_LT(turn.slot, flights);
        if (turn.work == Work::forward) {
          EXPECT_TRUE(in_flight.emplace(turn.slot, turn.micro_batch).second);
        } else {
          EXPECT_EQ(in_flight[turn.slot], turn.micro_batch);
          in_flight.erase(turn.slot);
        }
        most = std::max(most, in_flight.size());
      }
      EXPECT_EQ(most, static_cast<size_t>(flights));
    }
  });
}

// When the last stage is done, where each turn begins as soon as its stage is free and what it
// needs is there.
int64_t time_of(int stages, int64_t micro_batches, int64_t forward_time, int64_t backward_time) {
  std::vector<std::vector<Turn>> turns;
  for (int s = 0; s < stages; ++s)
    turns.push_back(one_forward_one_backward(s, stages, micro_batches));
  std::vector<size_t> next(static_cast<size_t>(stages), 0);
  std::vector<int64_t> clock(static_cast<size_t>(stages), 0);
  std::map<std::tuple<int, Work, int64_t>, int64_t> done;  // stage, work, micro-batch -> when
  for (bool moved = true; moved;) {
    moved = false;
    for (int s = 0; s < stages; ++s) {
      const auto i = static_cast<size_t>(s);
      if (next[i] == turns[i].size()) continue;
      const Turn& turn = turns[i][next[i]];
      const bool is_forward = turn.work == Work::forward;
      const int before = is_forward ? s - 1 : s + 1;
      if (before >= 0 && before < stages) {
        const auto found = done.find({before, turn.work, turn.micro_batch});
        if (found == done.end()) continue;
        clock[i] = std::max(clock[i], found->second);
      }
      clock[i] += is_forward ? forward_time : backward_time;
      done[{s, turn.work, turn.micro_batch}] = clock[i];
      ++next[i];
      moved = true;
    }
  }
  EXPECT_EQ(done.size(), static_cast<size_t>(2 * stages * micro_batches)) << "it stands still";
  return *std::max_element(clock.begin(), clock.end());
}

TEST(Schedule, EqualStagesTakeTheTimeOfTheFormula) {
  for_every_shape([](int stages, int64_t micro_batches) {
    const int64_t time = time_of(stages, micro_batches, 2, 5);
    EXPECT_EQ(time, (micro_batches + stages - 1) * (2 + 5));
    EXPECT_NEAR(bubble_of(stages, micro_batches),
                1.0 - static_cast<double>(7 * micro_batches) / static_cast<double>(time), 1e-12);
  });
}

TEST(Schedule, StagesThatAreNotThereAreRefused) {
  for (const auto& [stage, stages, micro_batches] :
       {std::tuple{-1, 2, 1}, {2, 2, 1}, {0, 0, 1}, {0, 1, -1}}) {
    expect_message(
        ErrorKind::generic, "no schedule",
        [&, s = stage, n = stages, m = micro_batches] { one_forward_one_backward(s, n, m); });
  }
}

// What a stage keeps of a micro-batch, and its sends that may still be under way.
struct Slot {
  int64_t stream = -1;
  int64_t gradient = -1;
  std::vector<Ticket> sent;
};

std::span<uint8_t> bytes_of(int64_t& number) {
  return {reinterpret_cast<uint8_t*>(&number), sizeof number};
}

// A step of one stage: it adds 1 to what comes by, and the last one turns x into 1000 x. Returns
// what came back at the first one, and forward at the others.
std::vector<int64_t> run_stage(Transport& transport, int64_t micro_batches) {
  const int stage = transport.rank(), stages = transport.size();
  std::vector<Slot> slots(static_cast<size_t>(flights_of(stage, stages, micro_batches)));
  std::vector<int64_t> seen;
  for (const Turn& turn : one_forward_one_backward(stage, stages, micro_batches)) {
    Slot& slot = slots[static_cast<size_t>(turn.slot)];
    if (turn.work == Work::forward) {
      transport.wait(slot.sent);
      slot.sent.clear();
      slot.stream = turn.micro_batch;
      if (stage > 0) receive_now(transport, stage - 1, Tag::stream, bytes_of(slot.stream));
      if (stage > 0) seen.push_back(slot.stream);
      ++slot.stream;
      if (stage + 1 < stages) {
        slot.sent.push_back(transport.send(stage + 1, Tag::stream, bytes_of(slot.stream)));
      }
    } else {
      slot.gradient = 1000 * slot.stream;
      if (stage + 1 < stages)
        receive_now(transport, stage + 1, Tag::stream, bytes_of(slot.gradient));
      ++slot.gradient;
      if (stage > 0) {
        slot.sent.push_back(transport.send(stage - 1, Tag::stream, bytes_of(slot.gradient)));
      } else {
        seen.push_back(slot.gradient);
      }
    }
  }
  for (const Slot& slot : slots) transport.wait(slot.sent);
  return seen;
}

// 10^4 steps in all, each under other delays.
TEST(Schedule, NoStageWaitsForEver) {
  constexpr int kRuns = 10000;
  constexpr int kSmallPipelines = 5;  // of 2 to 6 stages: two cores run so many threads in seconds
  for (int stages = 2; stages < 2 + kSmallPipelines; ++stages) {
    const LinkModel link{.jitter = std::chrono::microseconds(4),
                         .seed = static_cast<uint64_t>(stages)};
    const auto ranks = make_in_process(stages, link);
    std::vector<std::thread> threads;
    for (const auto& transport : ranks) {
      threads.emplace_back([&transport, stages] {
        for (int run = 0; run < kRuns / kSmallPipelines; ++run) {
          const int64_t micro_batches = 1 + run % (stages + 1);
          const std::vector<int64_t> seen = run_stage(*transport, micro_batches);
          for (int64_t m = 0; m < micro_batches; ++m) {
            const int rank = transport->rank();
            ASSERT_EQ(seen.at(static_cast<size_t>(m)),
                      rank == 0 ? 1000 * (m + stages) + stages : m + rank);
          }
        }
        transport->close();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace jackscrew
