// A tied embedding in a pipeline: the first stage has it as embedding, the last as head. Both hold
// it and update it alike, by the sum of both gradients. What is learned beside a frozen one is on
// the first stage alone.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "model/stage.h"
#include "session/place.h"

namespace jackscrew {

// Whether the gradient of this weight counts on another stage: that of a tied embedding, of which
// both ends have the sum, counts on the first alone. The last stage holds an embedding only where
// it is tied.
bool is_measured_elsewhere(const Place& place, const WeightSpec& weight);

class TiedEnds {
 public:
  // All must outlive this.
  TiedEnds(const Place& place, const Stage& stage, const Learner& learner)
      : place_(place), stage_(stage), learner_(learner) {}

  // This is an end of a pipeline, and it has gradients that both ends add, now or when the weight
  // no longer waits as a master.
  bool learn() const;
  // Updated within backward, it would be two weights, for each end has a part of its gradient only:
  // then throws Error(usage).
  void require_one_update() const;
  // The gradients that both ends add.
  std::vector<Tensor> gradients() const;
  // The names of the states whose gradients count elsewhere.
  std::set<std::string> measured_elsewhere() const;

 private:
  void visit(const StateVisitor& visitor) const;

  const Place& place_;
  const Stage& stage_;
  const Learner& learner_;
};

}  // namespace jackscrew
