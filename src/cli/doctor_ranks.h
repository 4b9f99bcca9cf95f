// Whether the processes that were started together reach each other, and how fast.
#pragma once

#include <string>
#include <vector>

#include "parallel/transport.h"

namespace jackscrew {

struct RankProbe {
  std::string host;
  // From rank 0 and back, halved; of rank 0 itself 0.
  double latency = 0;           // seconds, of 8 bytes
  double bytes_per_second = 0;  // of 16 MiB
};

// Every rank calls it, alone with the others; rank 0 gets all [ranks], the others nothing. Throws
// Error(device) where a rank is lost.
std::vector<RankProbe> try_ranks(Transport& ranks);

}  // namespace jackscrew
