#include "parallel/mpi/requests.h"

#include <array>
#include <utility>

#include "base/checked.h"
#include "base/error.h"

namespace jackscrew {

void Requests::send(int to, int tag, std::span<const uint8_t> bytes, Action done) {
  const int count = narrow<int>(bytes.size());
  const int slot = take_slot({.peer = to, .expected = -1, .done = std::move(done)});
  check(calls_.send(bytes.data(), count, to, tag, slot), to);
}

void Requests::receive(int from, int tag, std::span<uint8_t> bytes, Action done) {
  const int count = narrow<int>(bytes.size());
  const int slot = take_slot({.peer = from, .expected = count, .done = std::move(done)});
  check(calls_.receive(bytes.data(), count, from, tag, slot), from);
}

int Requests::poll() {
  int count = 0;
  check(calls_.test(done_.data(), &count), -1);
  // Actions may begin requests, and done_ may grow for these: they run after the loop over it.
  std::vector<Action> actions;
  for (int i = 0; i < count; ++i) {
    const MpiDone& done = done_[static_cast<size_t>(i)];
    check_done(done);
    actions.push_back(std::move(requests_[static_cast<size_t>(done.slot)].done));
    free_.push_back(done.slot);
  }
  for (const Action& action : actions) action();
  return count;
}

int Requests::take_slot(Request request) {
  if (free_.empty()) {
    free_.push_back(narrow<int>(requests_.size()));
    requests_.emplace_back();
    done_.emplace_back();
  }
  const int slot = free_.back();
  free_.pop_back();
  requests_[static_cast<size_t>(slot)] = std::move(request);
  return slot;
}

void Requests::check(int error, int peer) const {
  if (error == 0) return;
  std::array<char, kMpiTextBytes> text{};
  calls_.error_text(error, text.data());
  if (peer < 0) fail(ErrorKind::device, "MPI failed: {}", text.data());
  throw Error(ErrorKind::device,
              fmt::format("the connection to {} failed: {}", named(peer), text.data()),
              "see whether that process still runs, and the network between the machines");
}

void Requests::check_done(const MpiDone& done) const {
  const Request& request = requests_[static_cast<size_t>(done.slot)];
  if (done.truncated != 0) {
    fail(ErrorKind::device, "{} sent more than the {} bytes that were expected",
         named(request.peer), request.expected);
  }
  check(done.error, request.peer);
  if (request.expected >= 0 && done.bytes != request.expected) {
    fail(ErrorKind::device, "{} sent {} bytes where {} were expected", named(request.peer),
         done.bytes, request.expected);
  }
}

std::string Requests::named(int rank) const {
  return fmt::format("rank {} on {}", rank, hosts_.at(static_cast<size_t>(rank)));
}

}  // namespace jackscrew
