#include "train/run_watch.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "report/event_log.h"

namespace jackscrew {

void RunWatch::replay(const fs::path& log) {
  for_comparable_events(log, [&](const nlohmann::json& event) {
    const std::string kind = event.value("event", "");
    const auto number = [&](const char* key) -> std::optional<double> {
      const auto found = event.find(key);
      if (found == event.end() || !found->is_number()) return std::nullopt;
      return found->get<double>();
    };
    if (const auto loss = number("loss"); loss && kind == "step") logged(*loss);
    if (const auto loss = number("eval_loss"); loss && kind == "eval") {
      evaluated(event["step"].get<int64_t>(), *loss);
    }
  });
}

void RunWatch::logged(double loss) {
  high_losses_ = loss > options_.loss_watchdog_threshold ? high_losses_ + 1 : 0;
}

void RunWatch::evaluated(int64_t step, double loss) {
  last_evaluated_ = step;
  if (step == 0) {
    untrained_ = loss;
    return;
  }
  if (best_ && loss >= best_->loss) {
    ++worse_evaluations_;
    return;
  }
  best_ = Best{step, loss};
  worse_evaluations_ = 0;
}

std::string RunWatch::best_text() const {
  return fmt::format("{:.4f} at step {}", best_->loss, best_->step);
}

std::string RunWatch::why_stopped(bool has_trained) const {
  return fmt::format("{} without improvement: the best is {}{}",
                     counted(options_.early_stopping_patience, "evaluation"), best_text(),
                     has_trained ? "" : "; a larger early_stopping_patience trains on");
}

std::string RunWatch::why_given_up(double loss) const {
  return fmt::format("loss {:.4f}, above loss_watchdog_threshold {} for {}", loss,
                     options_.loss_watchdog_threshold,
                     counted(options_.loss_watchdog_patience, "logged step"));
}

std::string RunWatch::nothing_gained() const {
  if (!untrained_ || !best_ || best_->loss < *untrained_) return {};
  return fmt::format(
      "no evaluation was better than the model before training ({:.4f}): the best is {}; lower "
      "learning_rate",
      *untrained_, best_text());
}

bool RunWatch::out_of_patience() const {
  return options_.early_stopping_patience > 0 &&
         worse_evaluations_ >= options_.early_stopping_patience;
}

bool RunWatch::losses_too_high() const {
  return options_.loss_watchdog_threshold > 0 && high_losses_ >= options_.loss_watchdog_patience;
}

}  // namespace jackscrew
