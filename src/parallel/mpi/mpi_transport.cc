#include "parallel/mpi/mpi_transport.h"

#include "base/error.h"
#include "parallel/mpi/mpi_library.h"

namespace jackscrew {

const std::string& MpiTransport::host(int rank) const {
  check_rank(rank, size());
  return communication_->hosts()[static_cast<size_t>(rank)];
}

Ticket MpiTransport::send(int to, Tag tag, std::span<const uint8_t> bytes) {
  check_rank(to, size());
  return communication_->post(
      {.peer = to, .tag = tag, .ticket = {}, .sent = bytes, .received = {}, .is_send = true});
}

Ticket MpiTransport::receive(int from, Tag tag, std::span<uint8_t> bytes) {
  check_rank(from, size());
  return communication_->post(
      {.peer = from, .tag = tag, .ticket = {}, .sent = {}, .received = bytes, .is_send = false});
}

std::unique_ptr<Transport> open_transport(const TransportOptions& options) {
  if (options.ranks <= 1) return nullptr;
  const MpiCalls& calls = load_mpi();
  auto out = std::make_unique<MpiTransport>(
      calls,
      CommunicationOptions{.timeout = options.communication_timeout, .patience = options.patience});
  if (out->size() != options.ranks) {
    throw Error(ErrorKind::device,
                fmt::format("{} processes were started together, but MPI knows of {}",
                            options.ranks, out->size()),
                "start them by the mpirun of the MPI that jackscrew doctor names; with Slurm, by "
                "mpirun within sbatch");
  }
  return out;
}

}  // namespace jackscrew
