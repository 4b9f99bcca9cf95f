// Which part of a step a rank does. A step is cut into lanes, whose gradients are summed in a fixed
// tree; a model into stages, which pass micro-batches on. Lanes belong to the recipe, so that the
// same bits come out on any number of ranks.
#pragma once

#include <cstdint>

namespace jackscrew {

struct Layout {
  int stages = 1;     // ranks that hold the model together
  int replicas = 1;   // how often it is held
  int64_t lanes = 1;  // of a step, over all replicas

  // Ranks are numbered stage by stage: those of one replica follow each other.
  int ranks() const { return stages * replicas; }
  int stage_of(int rank) const { return rank % stages; }
  int replica_of(int rank) const { return rank / stages; }
  int rank_of(int replica, int stage) const { return replica * stages + stage; }
  int64_t lanes_of_replica() const { return lanes / replicas; }

  // The layout of `ranks` ranks: `stages` in each replica, `lanes` in a step; 0 for lanes: one for
  // each replica. Throws Error(usage) unless the ranks are whole replicas, and each replica has a
  // power of two of lanes: only then is the tree of all lanes made of those of the replicas.
  static Layout of(int ranks, int stages, int64_t lanes);
};

}  // namespace jackscrew
