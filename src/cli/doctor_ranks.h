// Tests whether the processes that were started together reach each other, and how fast.
#pragma once

#include <string>
#include <vector>

#include "parallel/transport.h"

namespace jackscrew {

struct RankProbe {
  std::string host;
  // Measured as half of a round trip from rank 0; 0 for rank 0 itself.
  double latency = 0;           // seconds, of 8 bytes
  double bytes_per_second = 0;  // of 16 MiB
};

// Collective: every rank calls it, with no other communication meanwhile. Returns [ranks] on rank
// 0, nothing on the others. Throws Error(device) where a rank is lost.
std::vector<RankProbe> try_ranks(Transport& ranks);

}  // namespace jackscrew
