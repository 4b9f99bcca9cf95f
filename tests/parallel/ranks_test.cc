// What the ranks of SlowMpi and Mpi do (mpi_test.cc starts them): tests that no one process can
// run.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "base/file.h"
#include "parallel/mpi/mpi_library.h"
#include "parallel/mpi/mpi_transport.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

using namespace std::chrono_literals;

// A test of several ranks: mpirun test_parallel --gtest_also_run_disabled_tests --gtest_filter=...
class DISABLED_Ranks : public testing::Test {
 protected:
  void open(std::chrono::milliseconds timeout, int64_t piece_bytes = 256 << 10) {
    transport_ = std::make_unique<MpiTransport>(
        load_mpi(), CommunicationOptions{.timeout = timeout, .piece_bytes = piece_bytes});
    ASSERT_GE(transport_->size(), 2);
    fmt::print("process {}\n", ::getpid());  // mpi_test.cc looks whether it is gone
    std::fflush(stdout);
  }

  Transport& ranks() { return *transport_; }
  int rank() { return transport_->rank(); }
  int size() { return transport_->size(); }

  // Every rank has come here.
  void meet() {
    std::vector<std::array<uint8_t, 1>> got(static_cast<size_t>(size()));
    const std::array<uint8_t, 1> sent{};
    std::vector<Ticket> tickets;
    for (int other = 0; other < size(); ++other) {
      tickets.push_back(ranks().send(other, Tag::command, sent));
      tickets.push_back(ranks().receive(other, Tag::command, got[static_cast<size_t>(other)]));
    }
    ranks().wait(tickets);
  }

  // Waits for something that rank 1 never sends, and ends all with 7 when that is known.
  void expect_lost(const std::string& part) {
    std::array<uint8_t, 1> byte{};
    expect_message(ErrorKind::device, part, [&] { receive_now(ranks(), 1, Tag::stream, byte); });
    expect_message(ErrorKind::device, part, [&] { receive_now(ranks(), 0, Tag::stream, byte); });
    if (rank() == 0 && !HasFailure()) fmt::print("rank 0 knows\n");
    std::fflush(stdout);
    // The others see for themselves; mpirun ends all at once.
    if (rank() != 0) std::this_thread::sleep_for(1s);
    ranks().abort(HasFailure() ? 1 : 7);
  }

  std::unique_ptr<MpiTransport> transport_;
};

std::vector<uint8_t> numbered(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> out(bytes);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random());
  return out;
}

// Message `index` of `from` to `to`, which both know.
std::vector<uint8_t> message_between(int from, int to, size_t bytes, size_t index) {
  return numbered(bytes,
                  static_cast<uint64_t>(from) * 1000003 + static_cast<uint64_t>(to) * 1009 + index);
}

// Every rank sends messages of these sizes to all others at once, and receives theirs.
void all_to_all(Transport& ranks, Tag tag, const std::vector<size_t>& sizes) {
  struct Bytes {
    std::vector<uint8_t> sent, expected, received;
  };
  std::vector<std::vector<Bytes>> all(static_cast<size_t>(ranks.size()));
  std::vector<Ticket> tickets;
  for (int other = 0; other < ranks.size(); ++other) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      all[static_cast<size_t>(other)].push_back({message_between(ranks.rank(), other, sizes[i], i),
                                                 message_between(other, ranks.rank(), sizes[i], i),
                                                 std::vector<uint8_t>(sizes[i])});
    }
  }
  for (int other = 0; other < ranks.size(); ++other) {
    for (Bytes& bytes : all[static_cast<size_t>(other)]) {
      tickets.push_back(ranks.send(other, tag, bytes.sent));
      tickets.push_back(ranks.receive(other, tag, bytes.received));
    }
  }
  ranks.wait(tickets);
  for (int other = 0; other < ranks.size(); ++other) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const Bytes& bytes = all[static_cast<size_t>(other)][i];
      EXPECT_TRUE(bytes.received == bytes.expected) << "from " << other << ", message " << i;
    }
  }
}

TEST_F(DISABLED_Ranks, ManyPieces) {
  constexpr size_t kPiece = 1000;
  open(30s, kPiece);
  for (int other = 0; other < size(); ++other) EXPECT_FALSE(ranks().host(other).empty());
  all_to_all(ranks(), Tag::stream,
             {0, 1, kPiece - 1, kPiece, kPiece + 1, 0, 2 * kPiece, 3, 100 * kPiece});
  std::mt19937 random(7);  // the same for all
  std::vector<size_t> sizes(300);
  for (size_t& bytes : sizes) bytes = random() % (4 * kPiece);
  all_to_all(ranks(), Tag::gradient, sizes);
  meet();
  ranks().close();
}

TEST_F(DISABLED_Ranks, LargeMessages) {
  open(30s);
  all_to_all(ranks(), Tag::gradient,
             {size_t{20} << 20, 5, (size_t{4} << 20) + 17, size_t{1} << 20});
  if (rank() == 0) {
    send_sized(ranks(), 1, Tag::command, numbered(12345678, 1));
  } else if (rank() == 1) {
    EXPECT_TRUE(receive_sized(ranks(), 0, Tag::command, 20000000) == numbered(12345678, 1));
  }
  ranks().close();
}

// Tags have sequences of their own, and a send to a rank that waits for something else ends later.
TEST_F(DISABLED_Ranks, TagsPassEachOther) {
  open(30s);
  std::vector<uint8_t> large(size_t{3} << 20, 1);
  std::array<uint8_t, 1> small = {2};
  if (rank() == 0) {
    const Ticket first = ranks().send(1, Tag::gradient, large);
    send_now(ranks(), 1, Tag::scalar, small);
    ranks().wait(std::array{first});
  } else if (rank() == 1) {
    small[0] = 0;
    large.assign(large.size(), 0);
    receive_now(ranks(), 0, Tag::scalar, small);
    receive_now(ranks(), 0, Tag::gradient, large);
    EXPECT_EQ(small[0], 2);
    EXPECT_EQ(large, std::vector<uint8_t>(large.size(), 1));
  }
  ranks().close();
}

TEST_F(DISABLED_Ranks, TooLong) {
  open(30s);
  std::array<uint8_t, 8> bytes{};
  if (rank() == 0) send_now(ranks(), 1, Tag::stream, bytes);
  if (rank() == 1) {
    expect_message(ErrorKind::device, "sent more than the 7 bytes that were expected",
                   [&] { receive_now(ranks(), 0, Tag::stream, std::span(bytes).first(7)); });
    ranks().abort(HasFailure() ? 1 : 7);
  }
  ranks().close();
}

TEST_F(DISABLED_Ranks, TooShort) {
  open(30s, 8);  // whole pieces
  std::array<uint8_t, 32> bytes{};
  if (rank() == 0) send_now(ranks(), 1, Tag::stream, std::span(bytes).first(16));
  if (rank() == 1) {
    expect_message(ErrorKind::device, "sent 0 bytes where 8 were expected",
                   [&] { receive_now(ranks(), 0, Tag::stream, bytes); });
    ranks().abort(HasFailure() ? 1 : 7);
  }
  ranks().close();
}

// A second without a sign of life is too long, but whoever computes gives signs of life.
TEST_F(DISABLED_Ranks, BusyIsNotLost) {
  open(1s);
  if (rank() == 1) std::this_thread::sleep_for(2500ms);
  meet();
  if (rank() == 0) std::this_thread::sleep_for(2500ms);  // the others are at the end
  ranks().close();
}

TEST_F(DISABLED_Ranks, OneStops) {
  open(2s);
  meet();
  if (rank() == 1) ::raise(SIGSTOP);
  expect_lost("rank 1 on " + ranks().host(1) + " gave no sign of life for 2 s");
}

TEST_F(DISABLED_Ranks, OneIsKilled) {
  open(2s);
  meet();
  if (rank() == 1) ::raise(SIGKILL);
  expect_lost("rank 1 on " + ranks().host(1));
}

TEST_F(DISABLED_Ranks, OneFails) {
  open(30s);
  meet();
  if (rank() == size() - 1) ranks().abort(6);
  meet();
}

// Signals are for the thread that the program has for them.
TEST_F(DISABLED_Ranks, NoThreadOfMpiTakesSignals) {
  constexpr int kSignals = 32;  // those above are the C library's own
  struct sigaction before[kSignals], after[kSignals];
  for (int signal = 1; signal < kSignals; ++signal) ::sigaction(signal, nullptr, &before[signal]);
  open(30s);
  meet();
  for (int signal = 1; signal < kSignals; ++signal) {
    ::sigaction(signal, nullptr, &after[signal]);
    EXPECT_EQ(after[signal].sa_sigaction, before[signal].sa_sigaction) << signal;
  }
  int threads = 0;
  for (const auto& task : fs::directory_iterator("/proc/self/task")) {
    ++threads;
    if (task.path().filename() == std::to_string(::getpid())) continue;
    std::ifstream status(task.path() / "status");
    std::string line;
    while (std::getline(status, line) && !line.starts_with("SigBlk:")) continue;
    ASSERT_TRUE(status.good()) << task.path();
    const uint64_t blocked = std::stoull(line.substr(std::strlen("SigBlk:")), nullptr, 16);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPROF}) {
      EXPECT_TRUE(blocked >> (signal - 1) & 1) << task.path() << ": " << signal;
    }
  }
  EXPECT_GE(threads, 2);
  ranks().close();
}

}  // namespace
}  // namespace jackscrew
