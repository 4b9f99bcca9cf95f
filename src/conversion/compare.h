// Measures how far one model is from another on a text.
#pragma once

#include <memory>

#include "base/json_object.h"
#include "data/dataset.h"
#include "report/progress.h"
#include "session/model_files.h"
#include "session/session.h"

namespace jackscrew {

// Means over the targets of a text, each predicted from the tokens before it.
struct Comparison {
  int64_t tokens = 0;                   // targets
  double reference_loss = 0;            // nats
  double loss = 0;                      // of the other model
  double divergence = 0;                // KL(reference || other), nats
  double agreement = 0;                 // share of targets with the same likeliest token
  double reference_rate = 0, rate = 0;  // tokens per second, of either model

  JsonObject to_json() const;
};

// How either session must be planned; its data are those of both.
SessionUse comparison_use(const Dataset& dataset, int64_t sequence_len);

// A model, and the recipe of the session that scores it.
struct ScoredModel {
  const Recipe& recipe;
  const ModelFiles& files;
};
// Throws Error(does_not_fit) unless a session over the model fits; unless sessions over both models
// fit at the same time. Call it before either is opened: where the recipe has no budget, what is
// free by then is the limit.
void require_room_to_score(const ScoredModel& model, const SessionUse& use);
void require_room_for_both(const ScoredModel& reference, const ScoredModel& other,
                           const SessionUse& use);
// A session over a model for which there is room. Nothing is asked again: what the program takes
// of its own is there by then in part, and would count twice.
std::unique_ptr<Session> open_scored(const ScoredModel& model, const SessionUse& use,
                                     const ProgressStyle& style);

// A session over a model, and what the model is called in errors.
struct ComparedSession {
  Session& session;
  std::string name;
};
// The name in errors of the model that a conversion has written, before it has its final name.
inline constexpr const char* kWrittenModel = "the written model";

// A hint for a model whose numbers are not finite.
inline constexpr const char* kNonFiniteModel =
    "its weights are damaged or, with another product than f32, too large for it";

// Throws Error(non_finite) unless the loss of the model is finite.
void require_finite_loss(double loss, const std::string& model);

// The ids of `dataset` must mean the same to both models. Where one has more columns of logits, for
// padding, only those that both have count. Throws Error(non_finite) where the reference's loss is
// not finite; that of the other the caller looks at.
Comparison compare_sessions(const ComparedSession& reference, const ComparedSession& other,
                            const Dataset& dataset, int threads, const ProgressStyle& style);

}  // namespace jackscrew
