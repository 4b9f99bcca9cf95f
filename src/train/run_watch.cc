#include "train/run_watch.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "formats/json_text.h"
#include "report/event_log.h"
#include "report/progress.h"
#include "train/resume.h"

namespace jackscrew {

void RunWatch::replay(const fs::path& output) {
  for_comparable_events(output / kLogName, [&](const nlohmann::json& event) {
    const std::string kind = event.value("event", "");
    const auto number = [&](const char* key) -> std::optional<double> {
      const auto found = event.find(key);
      if (found == event.end() || !found->is_number()) return std::nullopt;
      return found->get<double>();
    };
    if (const auto loss = number("loss"); loss && kind == "step") logged(*loss);
    const auto step = event["step"].get<int64_t>();
    // A run that was killed after it had repeated an evaluation has left it twice.
    const bool is_repeated = step == last_evaluated_;
    if (const auto loss = number("eval_loss"); loss && kind == "eval" && !is_repeated) {
      evaluated(step, *loss);
      if (is_checkpoint(checkpoint_path(output, step))) saved(step);
    }
  });
}

std::string RunWatch::state(const std::string& held_out) const {
  JsonObject out;
  out.add("held_out", crc32c(held_out)).add("last_evaluated", last_evaluated_);
  if (untrained_) out.add("untrained_loss", *untrained_);
  if (best_) {
    out.add("best_step", best_->step).add("best_loss", best_->loss);
    out.add("worse_evaluations", worse_evaluations_);
  }
  out.add("high_losses", high_losses_);
  return out.add("loss_watchdog_threshold", options_.loss_watchdog_threshold).text();
}

int64_t RunWatch::longest_state() {
  constexpr int64_t kCount = std::numeric_limits<uint32_t>::max();  // no run has more steps
  constexpr double kLoss = -std::numeric_limits<double>::min();
  RunWatch watch({.loss_watchdog_threshold = kLoss});
  watch.untrained_ = kLoss;
  watch.best_ = Best{kCount, kLoss};
  watch.last_evaluated_ = watch.worse_evaluations_ = watch.high_losses_ = kCount;
  // A checksum may be as long as a count, and is that of no text here.
  return std::ssize(watch.state({})) + std::ssize(std::to_string(kCount)) - 1;
}

bool RunWatch::restore(const fs::path& checkpoint, const std::string& held_out) try {
  const CheckpointInfo info = read_checkpoint_info(checkpoint);
  if (info.watch.empty()) return false;
  const std::string where = checkpoint.string() + ": watch";
  const nlohmann::json object = parse_json(info.watch, where);
  const JsonFields fields(object, where);
  const auto steps = [&](const char* key, int64_t least) {
    const int64_t value = fields.integer(key);
    if (value >= least && value <= info.step) return value;
    fail(ErrorKind::model, "{}: {} is {}, which is out of range", where, key, value);
  };
  RunWatch then(options_);
  const int64_t high_losses = steps("high_losses", 0);
  if (fields.number("loss_watchdog_threshold") == options_.loss_watchdog_threshold) {
    then.high_losses_ = high_losses;
  }
  const int64_t last_evaluated = steps("last_evaluated", -1);
  if (fields.integer("held_out") == crc32c(held_out)) {
    then.last_evaluated_ = last_evaluated;
    if (fields.has("untrained_loss")) then.untrained_ = fields.number("untrained_loss");
    if (fields.has("best_step")) {
      then.best_ = Best{steps("best_step", 1), fields.number("best_loss")};
      then.worse_evaluations_ = steps("worse_evaluations", 0);
      if (then.best_->step == last_evaluated) then.last_ = then.best_;
    }
  } else if (last_evaluated >= 0 && !held_out.empty()) {
    warn(other_held_out(checkpoint));
  }
  *this = then;
  return true;
} catch (const Error& error) {
  if (!error.hint().empty()) throw;
  throw Error(error.kind(), error.what(),
              "remove this checkpoint, or choose another with resume=PATH");
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
  last_ = Best{step, loss};
  if (best_ && loss >= best_->loss) {
    ++worse_evaluations_;
    return;
  }
  best_ = last_;
  worse_evaluations_ = 0;
}

std::string RunWatch::Best::text() const {
  return fmt::format("{:.4f} at step {}", loss, step);
}

void RunWatch::find_kept(const fs::path& output) {
  if (best_ && is_checkpoint(checkpoint_path(output, best_->step))) {
    kept_ = best_;
    return;
  }
  RunWatch logged({});
  logged.replay(output);
  kept_ = logged.kept_;
  if (!last_) last_ = logged.last_;
}

void RunWatch::saved(int64_t step) {
  if (beats_kept(step)) kept_ = last_;
}

std::string RunWatch::kept_text() const {
  const bool is_best = best_ && best_->step == kept_->step;
  return fmt::format("the best evaluation{}, {}", is_best ? "" : " that has a checkpoint",
                     kept_->text());
}

bool RunWatch::beats_kept(int64_t step) const {
  return last_ && last_->step == step && (!kept_ || last_->loss < kept_->loss);
}

int64_t RunWatch::result_step(int64_t done) const {
  return kept_ && !beats_kept(done) ? kept_->step : done;
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

std::string RunWatch::best_not_kept(int64_t done) const {
  if (!best_ || result_step(done) == best_->step) return {};
  return fmt::format(
      "the best evaluation, {}, has no checkpoint: the result is that of another step",
      best_text());
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
