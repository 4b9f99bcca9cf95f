#include "train/run_evaluation.h"

namespace jackscrew {

std::optional<EvalResult> evaluate_run(Crew& crew, const Dataset& evaluation, ProgressStyle style,
                                       const std::function<bool()>& stops) {
  struct Stopped {};
  style.check = [&] {
    if (!crew.is_in_common_work() && stops()) throw Stopped();
  };
  const ScoreBatch score = [&](const StepBatch& batch, const ProgressCallback& progress) {
    style.check();
    return crew.loss_sum(batch, progress);
  };
  try {
    return evaluate(score, evaluation, crew.use().tokens, crew.session().virtual_tokens(), style);
  } catch (const Stopped&) {
    return std::nullopt;
  }
}

}  // namespace jackscrew
