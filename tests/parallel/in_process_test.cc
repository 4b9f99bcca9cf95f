// Messages between threads: order, sizes, delays, losses.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <numeric>
#include <thread>

#include "parallel/transport.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Runs `work` as every rank; each must come back.
void as_ranks(int ranks, const LinkModel& link, const std::function<void(Transport&)>& work) {
  const auto transports = make_in_process(ranks, link);
  std::vector<std::thread> threads;
  for (const auto& transport : transports) threads.emplace_back([&] { work(*transport); });
  for (std::thread& thread : threads) thread.join();
}

std::vector<uint8_t> pattern(size_t bytes, int seed) {
  std::vector<uint8_t> out(bytes);
  for (size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<uint8_t>(i * 31 + static_cast<size_t>(seed));
  return out;
}

TEST(InProcess, MessagesOfATagArriveInOrder) {
  as_ranks(2, {.jitter = microseconds(20), .seed = 3}, [](Transport& transport) {
    constexpr size_t kMessages = 100;
    std::array<uint8_t, kMessages> bytes{};
    if (transport.rank() == 0) std::iota(bytes.begin(), bytes.end(), uint8_t{0});
    std::vector<Ticket> tickets;
    for (uint8_t& byte : bytes) {
      const std::span one(&byte, 1);
      tickets.push_back(transport.rank() == 0 ? transport.send(1, Tag::stream, one)
                                              : transport.receive(0, Tag::stream, one));
    }
    transport.wait(tickets);
    for (size_t i = 0; i < kMessages; ++i) EXPECT_EQ(bytes[i], i);
    transport.close();
  });
}

TEST(InProcess, TagsPassEachOther) {
  as_ranks(2, {}, [](Transport& transport) {
    std::array<uint8_t, 2> bytes{};
    if (transport.rank() == 0) {
      bytes = {1, 2};
      const Ticket first = transport.send(1, Tag::gradient, std::span(bytes).first(1));
      send_now(transport, 1, Tag::scalar, std::span(bytes).last(1));
      transport.wait(std::array{first});
    } else {
      receive_now(transport, 0, Tag::scalar, std::span(bytes).last(1));
      receive_now(transport, 0, Tag::gradient, std::span(bytes).first(1));
      EXPECT_EQ(bytes, (std::array<uint8_t, 2>{1, 2}));
    }
    transport.close();
  });
}

TEST(InProcess, SizedMessages) {
  as_ranks(2, {}, [](Transport& transport) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{7}, size_t{100000}}) {
      if (transport.rank() == 0) {
        send_sized(transport, 1, Tag::command, pattern(bytes, 5));
      } else {
        EXPECT_EQ(receive_sized(transport, 0, Tag::command, 100000), pattern(bytes, 5));
      }
    }
    transport.close();
  });
}

TEST(InProcess, ASizeBeyondTheBoundTakesNoMemory) {
  as_ranks(2, {}, [](Transport& transport) {
    std::array<uint8_t, 8> size = {0, 0, 0, 0, 0, 0, 0, 0x40};  // 4 EiB
    if (transport.rank() == 0) return send_now(transport, 1, Tag::command, size);
    expect_message(ErrorKind::device,
                   "rank 0 on thread-0 announces a message of 4611686018427387904 bytes",
                   [&] { receive_sized(transport, 0, Tag::command, 1 << 20); });
  });
}

TEST(InProcess, AMessageOfAnotherSizeIsAnErrorOnBothSides) {
  as_ranks(2, {}, [](Transport& transport) {
    std::array<uint8_t, 8> bytes{};
    expect_message(ErrorKind::device, "rank 0 on thread-0 sent 8 bytes where 7 were expected", [&] {
      if (transport.rank() == 0) send_now(transport, 1, Tag::stream, bytes);
      receive_now(transport, 0, Tag::stream, std::span(bytes).first(7));
    });
  });
}

TEST(InProcess, RanksThatAreNotThereAreRefused) {
  const auto transports = make_in_process(2);
  for (const int rank : {-1, 2}) {
    expect_message(ErrorKind::generic, "no rank",
                   [&] { transports[0]->send(rank, Tag::stream, {}); });
    expect_message(ErrorKind::generic, "no rank",
                   [&] { transports[0]->receive(rank, Tag::stream, {}); });
  }
}

// A send ends when it is received; until then its bytes are the network's.
TEST(InProcess, BytesAreLentUntilTheyAreReceived) {
  std::atomic<bool> received = false;
  as_ranks(2, {}, [&](Transport& transport) {
    std::array<uint8_t, 1> byte{};
    if (transport.rank() == 0) {
      send_now(transport, 1, Tag::stream, byte);
      EXPECT_TRUE(received);
    } else {
      std::this_thread::sleep_for(milliseconds(5));
      received = true;
      receive_now(transport, 0, Tag::stream, byte);
    }
    transport.close();
  });
}

TEST(InProcess, LatencyAndBandwidthTakeTheirTime) {
  // 4 messages of 5 ms one after the other, and 3 ms on the way.
  const LinkModel link{.latency = milliseconds(3), .bytes_per_second = 2e6};
  as_ranks(2, link, [](Transport& transport) {
    std::vector<uint8_t> bytes(40000);
    std::vector<Ticket> tickets;
    const Clock::time_point begin = Clock::now();
    for (size_t i = 0; i < 4; ++i) {
      const std::span part = std::span(bytes).subspan(10000 * i, 10000);
      tickets.push_back(transport.rank() == 0 ? transport.send(1, Tag::stream, part)
                                              : transport.receive(0, Tag::stream, part));
    }
    transport.wait(tickets);
    // Rank 1 may look at the clock when they are under way.
    if (transport.rank() == 0) {
      EXPECT_GE(Clock::now() - begin, milliseconds(23));
    }
    transport.close();
  });
}

// A rank may fail for reasons of its own as soon as it has closed.
TEST(InProcess, WhatHasClosedIsNotLost) {
  for (int i = 0; i < 200; ++i) {
    as_ranks(2, {}, [](Transport& transport) {
      EXPECT_NO_THROW(transport.close());
      if (transport.rank() == 0) {
        EXPECT_THROW(transport.abort(1), Error);
      }
    });
  }
}

TEST(InProcess, ALostRankEndsTheWaitsOfAll) {
  const LinkModel link{.messages_until_lost = 2, .lost_rank = 1};
  as_ranks(3, link, [](Transport& transport) {
    std::array<uint8_t, 1> byte{};
    const auto exchange = [&] {
      const int next = (transport.rank() + 1) % 3, before = (transport.rank() + 2) % 3;
      std::array<uint8_t, 1> got{};
      transport.wait(std::array{transport.send(next, Tag::stream, byte),
                                transport.receive(before, Tag::stream, got)});
    };
    expect_message(ErrorKind::device, "rank 1 on thread-1 is lost", [&] {
      for (;;) exchange();
    });
    // Nothing works after it.
    expect_message(ErrorKind::device, "rank 1 on thread-1 is lost",
                   [&] { transport.send(0, Tag::stream, byte); });
    expect_message(ErrorKind::device, "rank 1 on thread-1 is lost", [&] { transport.close(); });
  });
}

TEST(InProcess, AbortEndsTheWaitsOfAll) {
  as_ranks(3, {}, [](Transport& transport) {
    std::array<uint8_t, 1> byte{};
    expect_message(ErrorKind::device, "rank 2 on thread-2 ended all with 6", [&] {
      if (transport.rank() == 2) transport.abort(6);
      receive_now(transport, 2, Tag::command, byte);
    });
  });
}

TEST(InProcess, NobodyIsClosedBeforeTheOthers) {
  std::atomic<int> closing = 0;
  as_ranks(4, {}, [&](Transport& transport) {
    std::this_thread::sleep_for(milliseconds(transport.rank()));
    ++closing;
    transport.close();
    EXPECT_EQ(closing, 4);
  });
}

}  // namespace
}  // namespace jackscrew
