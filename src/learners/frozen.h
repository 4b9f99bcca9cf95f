// Nothing learns.
#pragma once

#include "learners/learner.h"

namespace jackscrew {

class FrozenSlot : public LearnerSlot {
 public:
  bool learns() const override { return false; }
};

class FrozenLearner : public Learner {
 public:
  const char* name() const override { return "frozen"; }
  bool changes(const WeightSpec&) const override { return false; }
  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext&, Weight&) override {
    return std::make_unique<FrozenSlot>();
  }
};

}  // namespace jackscrew
