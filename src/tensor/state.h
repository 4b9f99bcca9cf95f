// The one way to reach everything that a run must save, clip, reduce or resume.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/memory.h"

namespace jackscrew {

enum class StateRole {
  parameter,  // values that learn now: f32
  stored,     // values that learn now, as the bytes of their storage format
  master,     // exact values of a parameter that waits its turn, on the host
  gradient,   // what is accumulated over a step, and what the clipped norm is of
  window,     // what is accumulated over several steps, each of which adds to it
  moment,     // optimizer state
  counter,    // step counts
  constant,   // values that never change, and are a part of the result
  learner,    // what the learner itself keeps, such as which parameters of the whole run learn now:
              // restored before all else, as the rest depends on it
  unread      // what only a checkpoint has that is being restored, and this run has no use for: it
              // takes no memory, and `view` says nothing: it was shaped by other settings
};

// Values that are not, or not only, in this process's memory.
class RemoteState {
 public:
  virtual ~RemoteState() = default;
  // Calls sink(bytes) with the bytes of the values, in order, in pieces.
  virtual void read(const std::function<void(std::span<const uint8_t>)>& sink) const = 0;
  // Overwrites all of the values, wherever they are.
  virtual void write(std::span<const uint8_t> bytes) const = 0;
};

struct StateRef {
  std::string name;  // unique within the run: "<HF name>" or "<HF name>.<part>"
  StateRole role;
  Tensor view;  // contiguous
  bool save;    // belongs in a checkpoint
  // A file of booked_bytes(view.bytes()) that begins with exactly these bytes and will not change:
  // a checkpoint links it instead of writing them. On the plan device no file of that name exists.
  fs::path file = {};
  int64_t elements = 0;                // of the role `stored`
  std::vector<Tensor> lane_sums = {};  // of a gradient or a window: where they wait
  // For a window: a copy of what it held before the step; empty if no step has several lanes.
  Tensor before_step = {};
  // For a constant: the parameter to whose end an adapter joins it, and the dimension along which.
  std::string joins = {};
  int joins_along = 0;
  // If set, the values are reached only through it, and `view` has only their type and shape.
  std::shared_ptr<const RemoteState> remote = {};
};

// The number of the model's values in a state that learn, now or when their turn comes.
inline int64_t learning_elements(const StateRef& state) {
  const bool exact = state.role == StateRole::parameter || state.role == StateRole::master;
  return exact ? state.view.size() : state.role == StateRole::stored ? state.elements : 0;
}

using StateVisitor = std::function<void(const StateRef&)>;

}  // namespace jackscrew
