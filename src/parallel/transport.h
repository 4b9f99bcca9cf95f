// Bytes between the ranks of a run. Ranks are processes that were started together, on one machine
// or on several; what they compute is no business of this file.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace jackscrew {

// What kind of message it is. Messages of different tags between two ranks may pass each other.
enum class Tag : int {
  command,   // rank 0 to the others, and their answers
  stream,    // the residual stream and its gradient, between stages
  gradient,  // parts of gradients, between replicas
  scalar     // norms and losses
};

// A message on its way; only its transport knows what the number means.
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
  // ranks arrive in the order in which they were sent. The bytes are lent until wait() has
  // returned. A message that has not as many bytes as its receiver expects is an Error(device).
  virtual Ticket send(int to, Tag tag, std::span<const uint8_t> bytes) = 0;
  virtual Ticket receive(int from, Tag tag, std::span<uint8_t> bytes) = 0;
  // Waits for all of them. Throws Error(device) that names rank and machine as soon as a rank is
  // known to be lost: its process ended, or gave no sign of life for communication_timeout. That a
  // rank is busy, for however long, is no reason.
  virtual void wait(std::span<const Ticket> tickets) = 0;

  // Ends the processes of all ranks with this exit code; does not return.
  [[noreturn]] virtual void abort(int exit_code) = 0;
  // The last call: all ranks must make it, and none returns before the others have.
  virtual void close() = 0;
};

struct TransportOptions {
  // How many processes the launcher says it started together; 1: this one alone. A room does not
  // read the environment: launched_ranks() in cli/launch.h does.
  int ranks = 1;
  // A rank that gives no sign of life for as long is lost.
  std::chrono::milliseconds communication_timeout{30000};
  // Time beyond that before this rank gives up another: the rank that is to speak of it has least.
  std::chrono::milliseconds patience{0};
};

// Joins the other ranks where this process was started with others (by mpirun, or by Slurm); null
// where it was started alone. Call it once, before any thread computes. Throws Error(device) where
// it was started with others and MPI is not there, or finds another number of them.
std::unique_ptr<Transport> open_transport(const TransportOptions& options);

// What `doctor` says of it.
struct TransportReport {
  bool found;
  std::string text;  // the library and its version, or what is missing and what would bring it
};
TransportReport transport_report();

// A network in one process, for tests: every rank is a thread.
struct LinkModel {
  std::chrono::microseconds latency{0};
  double bytes_per_second = 0;  // of each direction between two ranks; 0: no limit
  // Adds a delay of up to `jitter`, drawn from `seed`, to each message.
  std::chrono::microseconds jitter{0};
  uint64_t seed = 0;
  // After so many messages of `lost_rank` in all, it is lost; -1: never.
  int64_t messages_until_lost = -1;
  int lost_rank = -1;
};
// Each for the thread of one rank. abort() and the loss of a rank throw Error(device) in the
// others' wait().
std::vector<std::unique_ptr<Transport>> make_in_process(int ranks, const LinkModel& link = {});

// For transports: throws unless 0 <= rank < ranks.
void check_rank(int rank, int ranks);

// send() or receive(), and wait().
void send_now(Transport& transport, int to, Tag tag, std::span<const uint8_t> bytes);
void receive_now(Transport& transport, int from, Tag tag, std::span<uint8_t> bytes);
// Messages whose receiver does not know their size: 8 bytes with it go ahead. `most` bounds what
// the receiver takes memory for; more is an Error(device).
void send_sized(Transport& transport, int to, Tag tag, std::span<const uint8_t> bytes);
std::vector<uint8_t> receive_sized(Transport& transport, int from, Tag tag, int64_t most);

}  // namespace jackscrew
