#include "learners/galore.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/text.h"
#include "learners/full.h"
#include "learners/galore_options.h"
#include "learners/galore_slot.h"
#include "learners/in_place.h"
#include "learners/refresh_turns.h"

namespace jackscrew {

namespace {

constexpr std::array<Saving, 5> kGaloreSavings = {{
    {"projection_dtype=bf16", "subspaces rounded to bf16", 1.01},
    {"projection_dtype=int4", "subspaces rounded to 4 bits", 1.1},
    {"galore_rank=25%", "a smaller subspace", 1.5},
    {"galore_rank=12.5%", "a smaller subspace", 2.25},
    {"galore_side=big", "larger subspaces, smaller moments", 1.02},
}};

class GaloreLearner : public Learner {
 public:
  explicit GaloreLearner(const OptionSet& options) : settings_(options) {}

  const char* name() const override { return "galore"; }
  bool changes(const WeightSpec&) const override { return true; }
  bool updates_in_place(const WeightSpec&) const override { return true; }

  void plan(std::span<const WeightSpec> weights) override {
    settings_.check(weights);
    for (const WeightSpec& weight : weights) {
      if (!settings_.targets(weight)) continue;
      check_worth(weight);
      targets_.push_back(weight);
    }
    turns_.plan(targets_);
  }

  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) override {
    memory_ = &context.memory;  // of a pipeline's stage that may have no target
    rounds_ = rounds_ || weight.as_f32().empty();
    if (settings_.targets(weight.spec())) {
      auto slot = std::make_unique<GaloreSlot>(context, weight, settings_);
      slots_.push_back(slot.get());
      return slot;
    }
    if (weight.as_f32().empty()) return make_in_place_slot(context, weight, settings_.stochastic);
    return make_full_slot(context, weight);
  }

  void reserve(Context&) override {
    plan_refreshes();
    std::map<std::string, int64_t> window_bytes;
    for (const GaloreSlot* slot : slots_) window_bytes.emplace(slot->name(), slot->window_bytes());
    memory_->allocate(Purpose::projections, turns_.worst_windows(window_bytes));
  }

  int64_t decomposition_bytes() const override {
    int64_t most = 0;
    for (const GaloreSlot* slot : slots_) most = std::max(most, slot->decomposition_bytes());
    return most;
  }

  void begin_run(int64_t total_steps) override {
    total_steps_ = total_steps;
    turns_.begin_run(total_steps);
    plan_refreshes();
  }

  bool begin_step(Context& context, int64_t step) override {
    if (held_) return false;
    bool changed = false;
    if (std::exchange(resumed_, false)) fit_schedules(step);
    // Refreshes free their windows before new ones are allocated.
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (step != refreshes_[i].next) continue;
      refresh(context, *slots_[i], refreshes_[i], step);
      changed = true;
    }
    if (!settings_.has_windows()) return changed;
    for (size_t i = 0; i < slots_.size(); ++i) {
      RefreshSchedule& schedule = refreshes_[i];
      if (schedule.open != 0 || step < schedule.next - turns_.window()) continue;
      slots_[i]->open_window();
      schedule.open = 1;
      changed = true;
    }
    return changed;
  }

  // Refreshes every matrix and leaves each in a window: the most scratch memory of either.
  int64_t rehearsal_cases() const override { return 1; }
  bool enter_rehearsal_case(Context& context, int64_t) override {
    held_ = true;
    for (GaloreSlot* slot : slots_) {
      slot->open_window();
      slot->refresh(context, 1);
      slot->open_window();
    }
    return true;
  }

  void visit(const StateVisitor& visitor) const override {
    // One state per matrix, so that the states of pipeline stages, concatenated, are the model's.
    for (size_t i = 0; i < refreshes_.size(); ++i) {
      auto* bytes =
          const_cast<RefreshSchedule*>(&refreshes_[i]);  // restoring a checkpoint writes here
      visitor({slots_[i]->name() + ".refreshes", StateRole::learner,
               Tensor(bytes, DType::u8, {sizeof(RefreshSchedule)}), true});
    }
  }

  void restored(Context&) override {
    for (const RefreshSchedule& schedule : refreshes_) {
      if (schedule.gap < 1 || schedule.done < 0) {
        fail(ErrorKind::model, "the state of galore's refreshes is damaged");
      }
    }
    // All are closed before any is opened: no more are open at once than reserve() has booked.
    for (GaloreSlot* slot : slots_) slot->close_window();
    for (size_t i = 0; i < slots_.size(); ++i) {
      RefreshSchedule& schedule = refreshes_[i];
      if (schedule.open == 0) continue;
      if (settings_.has_windows() && turns_.is_own(slots_[i]->name(), schedule)) {
        slots_[i]->open_window();
        continue;
      }
      // The checkpoint has other settings, so no memory was booked for this window; fit_schedules()
      // starts a new one, if these have any.
      slots_[i]->leave_window_unread();
      schedule.open = 0;
    }
    resumed_ = true;
  }

  LearnerNotes notes() const override {
    // The lines are about the whole model: the stage that gives them may have no target.
    LearnerNotes notes;
    notes.lines.push_back(fmt::format(
        "{} matrices in subspaces of rank {} (rank {} in {}), kept as {}, refreshed every {}{}",
        targets_.size(), settings_.rank.text, settings_.rank_of(targets_.front()),
        targets_.front().name, settings_.projection->name(), counted(turns_.gap(), "step"),
        settings_.has_windows()
            ? fmt::format(" from the gradients of {}", counted(turns_.window(), "step"))
            : " at random"));
    notes.lines.push_back(fmt::format(
        "their elements move as with a learning rate of {} in full training", element_rates()));
    if (!worthless_.empty()) notes.warnings.push_back(worthless_);
    if (!settings_.stochastic && !rounds_) {
      notes.warnings.push_back(
          "update_rounding=nearest has no effect: weights are stored exactly, in f32");
    }
    // The model's first refresh comes before step window(), on whichever stage.
    const bool any =
        turns_.window() < total_steps_ ||
        std::any_of(refreshes_.begin(), refreshes_.end(), [&](const RefreshSchedule& schedule) {
          return schedule.done > 0 || schedule.next < total_steps_;
        });
    if (!any && total_steps_ > 0) {
      notes.warnings.push_back(
          fmt::format("no subspace is refreshed in {}: all stay random; lower {}",
                      counted(total_steps_, "step"),
                      settings_.has_windows() ? "projection_window" : "projection_update_gap"));
    }
    return notes;
  }

  std::vector<LearnerEvent> take_events() override { return std::exchange(events_, {}); }

 private:
  void plan_refreshes() {
    refreshes_.clear();
    for (const GaloreSlot* slot : slots_) refreshes_.push_back(turns_.first(slot->name()));
  }

  void fit_schedules(int64_t step) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      const std::string& matrix = slots_[i]->name();
      if (turns_.is_own(matrix, refreshes_[i])) continue;
      refreshes_[i] = turns_.fitted(matrix, refreshes_[i].done, step);
    }
  }

  // Thin products are worth it while rank * (rows + cols) < rows * cols.
  void check_worth(const WeightSpec& weight) {
    if (!worthless_.empty()) return;
    const int64_t rank = settings_.rank_of(weight);
    const int64_t even = weight.size() / (weight.rows + weight.cols);
    if (rank <= even) return;
    // With a side of 1 no rank does.
    const std::string advice =
        even > 0 ? fmt::format(": a rank of {} breaks even; lower galore_rank, or", even) : ";";
    worthless_ = fmt::format(
        "rank {} of {} [{}, {}] takes more arithmetic than its whole gradient{} use method=full",
        rank, weight.name, weight.rows, weight.cols, advice);
  }

  void refresh(Context& context, GaloreSlot& slot, RefreshSchedule& schedule, int64_t step) {
    context.ops.finish();  // so that the stopwatch measures the refresh alone
    const Stopwatch watch;
    schedule.done += 1;
    const double overlap = slot.refresh(context, narrow<uint32_t>(schedule.done));
    schedule.open = 0;
    turns_.set_next(schedule, step, overlap, slot.chance_overlap());
    events_.push_back({"refresh", JsonObject()
                                      .add("weight", slot.name())
                                      .add("overlap", overlap)
                                      .add("next", schedule.next)
                                      .add("seconds", watch.seconds())});
  }

  // "0.001", or "0.0009 to 0.001".
  std::string element_rates() const {
    double least = settings_.element_scale(targets_.front()), most = least;
    for (const WeightSpec& weight : targets_) {
      least = std::min(least, settings_.element_scale(weight));
      most = std::max(most, settings_.element_scale(weight));
    }
    const std::string text = fmt::format("{:.3g}", settings_.learning_rate * most);
    const std::string lowest = fmt::format("{:.3g}", settings_.learning_rate * least);
    return lowest == text ? text : lowest + " to " + text;
  }

  GaloreSettings settings_;
  RefreshTurns turns_{settings_};
  std::vector<WeightSpec> targets_;  // of the whole model
  std::vector<GaloreSlot*> slots_;
  std::vector<RefreshSchedule> refreshes_;  // of slots_
  Memory* memory_ = nullptr;                // of the device
  int64_t total_steps_ = 0;
  std::string worthless_;  // a warning
  bool rounds_ = false;    // whether the storage of any weight does
  bool held_ = false;      // set while a case is rehearsed: nothing is refreshed
  bool resumed_ = false;   // until the first step from a checkpoint
  std::vector<LearnerEvent> events_;
};

}  // namespace

std::span<const Saving> galore_savings() {
  return kGaloreSavings;
}

std::unique_ptr<Learner> make_galore_learner(const OptionSet& options) {
  return std::make_unique<GaloreLearner>(options);
}

}  // namespace jackscrew
