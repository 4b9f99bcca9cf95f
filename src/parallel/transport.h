// Transport of bytes between the ranks of a run. Ranks are processes that were started together, on
// one machine or on several; this file knows nothing of what they compute.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace jackscrew {

// The kind of a message. Messages of different tags between two ranks may overtake each other.
enum class Tag : int {
  command,   // rank 0 to the others, and their answers
  stream,    // the residual stream and its gradient, between stages
  gradient,  // parts of gradients, between replicas
  scalar     // norms and losses
};

// A message in transit; only its transport knows what the number means.
struct Ticket {
  int64_t id = -1;  // -1: nothing to wait for
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The name of the machine that a rank runs on.
  virtual const std::string& host(int rank) const = 0;

  // Begin to send or receive; neither waits for the other side. Messages of one tag between two
  // ranks arrive in the order in which they were sent. The bytes must stay valid, and those sent
  // unchanged, until wait() has returned. A message of another size than its receiver expects is an
  // Error(device).
  virtual Ticket send(int to, Tag tag, std::span<const uint8_t> bytes) = 0;
  virtual Ticket receive(int from, Tag tag, std::span<uint8_t> bytes) = 0;
  // Waits for all of them. Throws Error(device) naming rank and machine as soon as a rank is known
  // to be lost: its process ended, or gave no sign of life for communication_timeout. A rank may be
  // busy for any length of time without being lost.
  virtual void wait(std::span<const Ticket> tickets) = 0;

  // Ends the processes of all ranks with this exit code; does not return.
  [[noreturn]] virtual void abort(int exit_code) = 0;
  // The last call: all ranks must make it, and none returns before the others have.
  virtual void close() = 0;
};

struct TransportOptions {
  // How many processes the launcher says it started together; 1: this one alone. launched_ranks()
  // in cli/launch.h reads it from the environment.
  int ranks = 1;
  // A rank that gives no sign of life for this long is lost.
  std::chrono::milliseconds communication_timeout{30000};
  // How much longer this rank waits before it gives up another: the rank that is to report the loss
  // has the least patience.
  std::chrono::milliseconds patience{0};
};

// Joins the other ranks if this process was started with others (by mpirun, or by Slurm); returns
// null if it was started alone. Call it once, before any thread computes. Throws Error(device)
// where it was started with others and MPI is missing, or finds another number of them.
std::unique_ptr<Transport> open_transport(const TransportOptions& options);

// What `doctor` says of the transport.
struct TransportReport {
  bool found;
  std::string text;  // the library and its version, or what is missing and what would bring it
};
TransportReport transport_report();

// A simulated network in one process, for tests: every rank is a thread.
struct LinkModel {
  std::chrono::microseconds latency{0};
  double bytes_per_second = 0;  // of each direction between two ranks; 0: no limit
  // Adds a delay of up to `jitter`, drawn from `seed`, to each message.
  std::chrono::microseconds jitter{0};
  uint64_t seed = 0;
  // `lost_rank` is lost after it has sent this many messages; -1: never.
  int64_t messages_until_lost = -1;
  int lost_rank = -1;
};
// Makes one transport for each rank's thread. abort() and the loss of a rank throw Error(device) in
// the others' wait().
std::vector<std::unique_ptr<Transport>> make_in_process(int ranks, const LinkModel& link = {});

// For transports: throws unless 0 <= rank < ranks.
void check_rank(int rank, int ranks);

// send() or receive(), followed by wait().
void send_now(Transport& transport, int to, Tag tag, std::span<const uint8_t> bytes);
void receive_now(Transport& transport, int from, Tag tag, std::span<uint8_t> bytes);
// Messages whose size the receiver does not know: it goes ahead in 8 bytes. `most` is the largest
// size that the receiver allocates; a larger one is an Error(device).
void send_sized(Transport& transport, int to, Tag tag, std::span<const uint8_t> bytes);
std::vector<uint8_t> receive_sized(Transport& transport, int from, Tag tag, int64_t most);

}  // namespace jackscrew
