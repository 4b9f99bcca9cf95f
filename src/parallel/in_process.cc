// Ranks as threads of one process. A message is copied from buffer to buffer only when both sides
// have asked for it and its arrival time has come. So a rank that relies on a send to end early
// waits for ever, as over MPI with messages too large to be buffered, and one that touches lent
// bytes corrupts them.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "parallel/transport.h"

namespace jackscrew {

namespace {

using Clock = std::chrono::steady_clock;

// Threads are woken some 50 us too late, so shorter waits spin.
constexpr std::chrono::microseconds kShortWait{50};

// The state that all ranks share.
class Network {
 public:
  Network(int ranks, const LinkModel& link)
      : link_(link), random_(link.seed), free_(static_cast<size_t>(ranks * ranks)) {
    for (int rank = 0; rank < ranks; ++rank) hosts_.push_back(fmt::format("thread-{}", rank));
  }

  int ranks() const { return static_cast<int>(hosts_.size()); }
  const std::string& host(int rank) const { return hosts_.at(static_cast<size_t>(rank)); }

  Ticket send(int from, int to, Tag tag, std::span<const uint8_t> bytes) {
    const std::lock_guard lock(mutex_);
    throw_if_lost();
    count_message(from);
    const Ticket ticket = new_ticket();
    Channel& channel = channels_[{from, to, tag}];
    channel.last_arrival = std::max(channel.last_arrival, arrival(from, to, bytes.size()));
    channel.sent.push_back({bytes, ticket.id, channel.last_arrival});
    changed_.notify_all();
    return ticket;
  }

  Ticket receive(int from, int to, Tag tag, std::span<uint8_t> bytes) {
    const std::lock_guard lock(mutex_);
    throw_if_lost();
    const Ticket ticket = new_ticket();
    channels_[{from, to, tag}].expected.push_back({bytes, ticket.id});
    changed_.notify_all();
    return ticket;
  }

  void wait(std::span<const Ticket> tickets) {
    wait_until([&] {
      return std::none_of(tickets.begin(), tickets.end(),
                          [&](Ticket ticket) { return unfinished_.contains(ticket.id); });
    });
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      ++closed_;
      changed_.notify_all();
    }
    wait_until([&] { return closed_ == ranks(); });
  }

  void lose(std::string why) {
    const std::lock_guard lock(mutex_);
    // Once all ranks have closed, one that has not noticed yet is not to hear of a loss.
    if (!loss_ && closed_ < ranks()) loss_ = std::move(why);
    changed_.notify_all();
  }

 private:
  struct Sent {
    std::span<const uint8_t> bytes;
    int64_t ticket;
    Clock::time_point arrival;
  };
  struct Expected {
    std::span<uint8_t> bytes;
    int64_t ticket;
  };
  struct Channel {
    std::deque<Sent> sent;
    std::deque<Expected> expected;
    Clock::time_point last_arrival{};  // no message overtakes the one before
  };

  Ticket new_ticket() {
    unfinished_.insert(next_ticket_);
    return {next_ticket_++};
  }

  void throw_if_lost() const {
    if (loss_) throw Error(ErrorKind::device, *loss_);
  }

  void count_message(int from) {
    if (from != link_.lost_rank || link_.messages_until_lost < 0) return;
    if (messages_++ < link_.messages_until_lost) return;
    loss_ = fmt::format("rank {} on {} is lost", from, host(from));
    changed_.notify_all();
    throw_if_lost();
  }

  Clock::time_point arrival(int from, int to, size_t bytes) {
    std::chrono::duration<double> on_the_wire{0};
    if (link_.bytes_per_second > 0) {
      on_the_wire =
          std::chrono::duration<double>(static_cast<double>(bytes) / link_.bytes_per_second);
    }
    // A wire carries one message after another.
    Clock::time_point& wire = free_[static_cast<size_t>(from * ranks() + to)];
    wire = std::max(wire, Clock::now()) + std::chrono::duration_cast<Clock::duration>(on_the_wire);
    std::uniform_int_distribution<int64_t> jitter(0, link_.jitter.count());
    return wire + link_.latency + std::chrono::microseconds(jitter(random_));
  }

  // Copies the messages that are due. Returns when the next one is due of which both sides wait.
  std::optional<Clock::time_point> deliver() {
    std::optional<Clock::time_point> next;
    const Clock::time_point now = Clock::now();
    for (auto& [key, channel] : channels_) {
      while (!channel.sent.empty() && !channel.expected.empty()) {
        const Sent& sent = channel.sent.front();
        if (sent.arrival > now) {
          next = std::min(next.value_or(sent.arrival), sent.arrival);
          break;
        }
        const Expected& expected = channel.expected.front();
        check_size(std::get<0>(key), sent.bytes.size(), expected.bytes.size());
        std::copy(sent.bytes.begin(), sent.bytes.end(), expected.bytes.begin());
        unfinished_.erase(sent.ticket);
        unfinished_.erase(expected.ticket);
        channel.sent.pop_front();
        channel.expected.pop_front();
        changed_.notify_all();
      }
    }
    return next;
  }

  void check_size(int from, size_t sent, size_t expected) {
    if (sent == expected) return;
    if (!loss_) {
      loss_ = fmt::format("rank {} on {} sent {} bytes where {} were expected", from, host(from),
                          sent, expected);
    }
    changed_.notify_all();
    throw_if_lost();
  }

  template <class Condition>
  void wait_until(Condition done) {
    std::unique_lock lock(mutex_);
    for (;;) {
      throw_if_lost();
      const std::optional<Clock::time_point> next = deliver();
      if (done()) return;
      if (!next) {
        changed_.wait(lock);
      } else if (*next - Clock::now() > kShortWait) {
        changed_.wait_until(lock, *next);
      } else {
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
      }
    }
  }

  const LinkModel link_;
  std::vector<std::string> hosts_;  // [ranks]
  std::mutex mutex_;                // guards all below
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::vector<Clock::time_point> free_;  // [from, to]: when the wire is free again
  std::map<std::tuple<int, int, Tag>, Channel> channels_;
  std::set<int64_t> unfinished_;
  int64_t next_ticket_ = 0;
  int64_t messages_ = 0;  // sent so far by the rank that will be lost
  int closed_ = 0;
  std::optional<std::string> loss_;
};

class InProcess final : public Transport {
 public:
  InProcess(std::shared_ptr<Network> network, int rank)
      : network_(std::move(network)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return network_->ranks(); }
  const std::string& host(int rank) const override { return network_->host(rank); }

  Ticket send(int to, Tag tag, std::span<const uint8_t> bytes) override {
    check_rank(to, size());
    return network_->send(rank_, to, tag, bytes);
  }
  Ticket receive(int from, Tag tag, std::span<uint8_t> bytes) override {
    check_rank(from, size());
    return network_->receive(from, rank_, tag, bytes);
  }
  void wait(std::span<const Ticket> tickets) override { network_->wait(tickets); }
  [[noreturn]] void abort(int exit_code) override {
    const std::string why =
        fmt::format("rank {} on {} ended all with {}", rank_, host(rank_), exit_code);
    network_->lose(why);
    throw Error(ErrorKind::device, why);
  }
  void close() override { network_->close(); }

 private:
  std::shared_ptr<Network> network_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_in_process(int ranks, const LinkModel& link) {
  const auto network = std::make_shared<Network>(ranks, link);
  std::vector<std::unique_ptr<Transport>> out;
  for (int rank = 0; rank < ranks; ++rank)
    out.push_back(std::make_unique<InProcess>(network, rank));
  return out;
}

}  // namespace jackscrew
