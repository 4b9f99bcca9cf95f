// Which part of a step a rank does. A step is cut into lanes, whose gradients are summed in a fixed
// tree; a model is cut into stages, which pass micro-batches on. The number of lanes belongs to the
// recipe, so that the same bits come out on any number of ranks.
#pragma once

#include <cstdint>
#include <string>

namespace jackscrew {

struct Layout {
  int stages = 1;     // ranks that hold the model together
  int replicas = 1;   // copies of the model
  int64_t lanes = 1;  // of a step, over all replicas

  // Ranks are numbered stage by stage: those of one replica follow each other.
  int ranks() const { return stages * replicas; }
  int stage_of(int rank) const { return rank % stages; }
  int replica_of(int rank) const { return rank / stages; }
  int rank_of(int replica, int stage) const { return replica * stages + stage; }
  int64_t lanes_of_replica() const { return lanes / replicas; }

  // The layout of `ranks` ranks: `stages` in each replica, `lanes` in a step, or with lanes = 0 one
  // for each replica. Throws Error(usage) unless the ranks make whole replicas and each replica has
  // a power of two of lanes: only then are the replicas' trees subtrees of the tree of all lanes.
  static Layout of(int ranks, int stages, int64_t lanes);
  // Whether replicas can share lanes so.
  static bool can_share(int64_t replicas, int64_t lanes);
  // For a hint: the numbers of ranks that can share at least one lane so, "one of 2, 4, 8 ranks".
  static std::string ranks_text(int stages, int64_t lanes);
};

}  // namespace jackscrew
