// The transport between processes, over MPI.
#pragma once

#include "parallel/mpi/communication.h"
#include "parallel/transport.h"

namespace jackscrew {

class MpiTransport final : public Transport {
 public:
  // Joins the other ranks; throws as Communication::start() does. MPI can be initialised only once
  // in the life of a process. `calls` must outlive the process's MPI thread.
  MpiTransport(const MpiCalls& calls, const CommunicationOptions& options)
      : communication_(Communication::start(calls, options)) {}
  ~MpiTransport() override { communication_->leave(); }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  int rank() const override { return communication_->rank(); }
  int size() const override { return static_cast<int>(communication_->hosts().size()); }
  const std::string& host(int rank) const override;
  Ticket send(int to, Tag tag, std::span<const uint8_t> bytes) override;
  Ticket receive(int from, Tag tag, std::span<uint8_t> bytes) override;
  void wait(std::span<const Ticket> tickets) override { communication_->wait(tickets); }
  [[noreturn]] void abort(int exit_code) override { communication_->abort(exit_code); }
  void close() override { communication_->close(); }

 private:
  std::shared_ptr<Communication> communication_;
};

}  // namespace jackscrew
