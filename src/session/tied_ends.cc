#include "session/tied_ends.h"

namespace jackscrew {

bool is_measured_elsewhere(const Place& place, const WeightSpec& weight) {
  return !place.is_first() && place.is_last() && weight.kind == WeightKind::embedding;
}

// Visits the states of a tied embedding that learns.
void TiedEnds::visit(const StateVisitor& visitor) const {
  const bool at_an_end = place_.layout.stages > 1 && (place_.is_first() || place_.is_last());
  if (!at_an_end || !stage_.config().tie_word_embeddings) return;
  for (const auto& parameter : stage_.parameters()) {
    const WeightSpec& spec = parameter->weight->spec();
    const bool learns = spec.kind == WeightKind::embedding && learner_.changes(spec);
    if (learns) parameter->slot->visit(visitor);
  }
}

std::set<std::string> TiedEnds::measured_elsewhere() const {
  std::set<std::string> names;
  for (const auto& parameter : stage_.parameters()) {
    if (!is_measured_elsewhere(place_, parameter->weight->spec())) continue;
    parameter->slot->visit([&](const StateRef& state) { names.insert(state.name); });
  }
  return names;
}

std::vector<Tensor> TiedEnds::gradients() const {
  std::vector<Tensor> gradients;
  visit([&](const StateRef& state) {
    if (state.role == StateRole::gradient) gradients.push_back(state.view);
  });
  return gradients;
}

bool TiedEnds::learn() const {
  bool any = false;
  visit([&](const StateRef& state) {
    any = any || state.role == StateRole::gradient || state.role == StateRole::master;
  });
  return any;
}

void TiedEnds::require_one_update() const {
  if (!learner_.updates_in_backward() || !learn()) return;
  throw Error(ErrorKind::usage,
              "with update=fused each end of a pipeline would update the embedding, which is the "
              "head as well, by its own part of the gradient",
              "set update=after (max_grad_norm_of=model), or train on one stage");
}

}  // namespace jackscrew
