// How long a step of a pipeline takes whose stages sleep instead of computing, beside its formula,
// (M + S - 1) x (forward + backward): what the order of the work and the waiting for messages cost,
// whatever the stages compute. Sleeping needs no processor, so any machine has enough of them.
//
//   pipeline_bench
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "kernels/device.h"
#include "parallel/peers.h"
#include "parallel/schedule.h"

namespace jackscrew {
namespace {

// A backward pass takes about twice as long as a forward pass. Long beside what it takes a thread
// to wake, some 0.1 ms.
constexpr std::chrono::milliseconds kForward{10}, kBackward{20};

struct Slot {
  explicit Slot(Memory& memory)
      : stream(memory, Purpose::activations, DType::f32, {1, 16}),
        gradient(memory, Purpose::activations, DType::f32, {1, 16}) {}

  OwnedTensor stream, gradient;
  Ticket stream_sent = {}, gradient_sent = {};
};

// The work of one stage in a step, as Session::accumulate_parts() does it.
void run_stage(Peers& peers, Ops& ops, std::vector<Slot>& slots, const std::vector<Turn>& turns) {
  const Tensor none;
  for (const Turn& turn : turns) {
    Slot& slot = slots[static_cast<size_t>(turn.slot)];
    if (turn.work == Work::forward) {
      peers.wait(slot.stream_sent);
      peers.wait(slot.gradient_sent);
      if (!peers.is_first()) peers.receive_forward(ops, slot.stream.view(), none);
      std::this_thread::sleep_for(kForward);
      if (!peers.is_last()) slot.stream_sent = peers.send_forward(ops, slot.stream.view(), none);
    } else {
      if (!peers.is_last()) {
        peers.wait(slot.stream_sent);
        peers.receive_backward(ops, slot.gradient.view(), none);
      }
      std::this_thread::sleep_for(kBackward);
      if (!peers.is_first()) {
        slot.gradient_sent = peers.send_backward(ops, slot.gradient.view(), none);
      }
    }
  }
  for (Slot& slot : slots) {
    peers.wait(slot.stream_sent);
    peers.wait(slot.gradient_sent);
  }
}

// Seconds of a step, the least of some rounds.
double step_seconds(int stages, int64_t micro_batches) {
  constexpr int kRounds = 3;
  const auto transports = make_in_process(stages);
  std::barrier<> together(stages);
  double least = 0;
  const auto serve = [&](int stage) {
    const auto device = open_device("cpu", {});
    Memory memory("device", device->make_backing(), 0);
    const std::unique_ptr<Ops> ops = device->make_ops(memory);
    Peers peers(transports[static_cast<size_t>(stage)].get(), {stages, 1, 1}, stage);
    std::vector<Slot> slots;
    const int64_t count = flights_of(stage, stages, micro_batches);
    for (int64_t i = 0; i < count; ++i) slots.emplace_back(memory);
    const auto turns = one_forward_one_backward(stage, stages, micro_batches);
    for (int round = 0; round < kRounds; ++round) {
      together.arrive_and_wait();
      const Stopwatch watch;
      run_stage(peers, *ops, slots, turns);
      together.arrive_and_wait();
      if (stage == 0) least = round == 0 ? watch.seconds() : std::min(least, watch.seconds());
    }
  };
  std::vector<std::thread> threads;
  for (int stage = 1; stage < stages; ++stage) threads.emplace_back(serve, stage);
  serve(0);
  for (std::thread& thread : threads) thread.join();
  return least;
}

void run() {
  fmt::print("| stages | micro-batches | (M + S - 1)(f + b) | measured | longer by |\n");
  fmt::print("|---|---|---|---|---|\n");
  for (const int stages : {2, 4, 8}) {
    for (const int64_t micro_batches : {1, 2, 4, 8, 16, 32}) {
      const double both = std::chrono::duration<double>(kForward + kBackward).count();
      const double formula = static_cast<double>(micro_batches + stages - 1) * both;
      const double seconds = step_seconds(stages, micro_batches);
      fmt::print("| {} | {} | {:.3f} s | {:.3f} s | {:.1f} % |\n", stages, micro_batches, formula,
                 seconds, 100.0 * (seconds / formula - 1.0));
    }
  }
}

}  // namespace
}  // namespace jackscrew

int main() {
  jackscrew::run();
}
