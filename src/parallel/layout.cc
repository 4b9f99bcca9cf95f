#include "parallel/layout.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"

namespace jackscrew {

namespace {

// "2, 4, 6", cut off after the first few.
std::string listed(const std::vector<int64_t>& numbers) {
  constexpr size_t kMost = 8;
  std::string out;
  for (size_t i = 0; i < std::min(kMost, numbers.size()); ++i) {
    out += fmt::format("{}{}", i == 0 ? "" : ", ", numbers[i]);
  }
  return out + (numbers.size() > kMost ? " ..." : "");
}

[[noreturn]] void refuse_stages(int ranks, int stages) {
  if (ranks == 1) {
    throw Error(
        ErrorKind::usage,
        fmt::format("pipeline_stages={} needs as many ranks; this is one", stages),
        fmt::format("start it by `mpirun -n {0} --bind-to none jackscrew train ...`; plan takes "
                    "ranks={0}",
                    stages));
  }
  std::vector<int64_t> divisors;
  for (int s = 1; s <= ranks; ++s) {
    if (ranks % s == 0) divisors.push_back(s);
  }
  throw Error(ErrorKind::usage,
              fmt::format("{} ranks cannot be divided into pipelines of {} stages", ranks, stages),
              fmt::format("start {} or a multiple of it, or set pipeline_stages to one of {}",
                          stages, listed(divisors)));
}

std::vector<int64_t> ranks_that_share(int stages, int64_t lanes) {
  // Halving the lanes of a replica doubles the replicas, until each has one.
  const int halvings = std::countr_zero(static_cast<uint64_t>(lanes));
  std::vector<int64_t> out;
  for (int i = halvings; i >= 0; --i) out.push_back(checked_mul(lanes >> i, stages));
  return out;
}

[[noreturn]] void refuse_lanes(int ranks, int stages, int64_t lanes) {
  const int replicas = ranks / stages;
  throw Error(
      ErrorKind::usage,
      fmt::format("{} {} {} of the model, over which {} (data_parallel) cannot be divided: each "
                  "needs 1, 2, 4, 8 ... of them",
                  counted(ranks, "rank"), ranks == 1 ? "has" : "have",
                  counted(replicas, "copy", "copies"), counted(lanes, "lane")),
      fmt::format("start {} (plan takes ranks={}), or set data_parallel={}",
                  Layout::ranks_text(stages, lanes), ranks_that_share(stages, lanes).front(),
                  replicas));
}

}  // namespace

bool Layout::can_share(int64_t replicas, int64_t lanes) {
  return lanes % replicas == 0 && std::has_single_bit(static_cast<uint64_t>(lanes / replicas));
}

std::string Layout::ranks_text(int stages, int64_t lanes) {
  const std::vector<int64_t> ranks = ranks_that_share(stages, lanes);
  return ranks.size() > 1 ? fmt::format("one of {} ranks", listed(ranks))
                          : counted(ranks.front(), "rank");
}

Layout Layout::of(int ranks, int stages, int64_t lanes) {
  if (ranks < 1 || stages < 1 || lanes < 0) {
    fail(ErrorKind::usage, "no layout has {} ranks, {} stages and {} lanes", ranks, stages, lanes);
  }
  if (ranks % stages != 0) refuse_stages(ranks, stages);
  Layout out{.stages = stages, .replicas = ranks / stages, .lanes = lanes};
  if (lanes == 0) out.lanes = out.replicas;
  if (!can_share(out.replicas, out.lanes)) refuse_lanes(ranks, stages, lanes);
  return out;
}

}  // namespace jackscrew
