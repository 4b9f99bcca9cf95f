// MPI requests with completion callbacks. Used by the communication thread alone.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "parallel/mpi/mpi_calls.h"

namespace jackscrew {

class Requests {
 public:
  // Runs within poll(); may begin further requests.
  using Action = std::function<void()>;

  // `hosts`: [ranks]. Both must outlive this object.
  Requests(const MpiCalls& calls, const std::vector<std::string>& hosts)
      : calls_(calls), hosts_(hosts) {}
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  // At most 2^31 - 1 bytes, lent until `done` is called.
  void send(int to, int tag, std::span<const uint8_t> bytes, Action done);
  void receive(int from, int tag, std::span<uint8_t> bytes, Action done);

  // Lets MPI make progress and runs the actions of completed requests. Returns how many there were.
  // Throws Error(device) naming rank and machine where one failed, or brought more or fewer bytes
  // than expected.
  int poll();

 private:
  struct Request {
    int peer = -1;
    int64_t expected = -1;  // bytes; -1: a send
    Action done;
  };

  int take_slot(Request request);
  void check(int error, int peer) const;
  void check_done(const MpiDone& done) const;
  std::string named(int rank) const;

  const MpiCalls& calls_;
  const std::vector<std::string>& hosts_;
  std::vector<Request> requests_;  // [slots]
  std::vector<MpiDone> done_;      // [slots]
  std::vector<int> free_;          // slots
};

}  // namespace jackscrew
