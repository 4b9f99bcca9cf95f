#include "learners/galore.h"

#include <algorithm>
#include <array>
#include <bit>
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

namespace jackscrew {

namespace {

constexpr int64_t kLongRun = int64_t{1} << 32;  // steps; for more no gap is longer

constexpr std::array<Saving, 5> kSavings = {{
    {"projection_dtype=bf16", "subspaces rounded to bf16", 1.01},
    {"projection_dtype=int4", "subspaces rounded to 4 bits", 1.1},
    {"galore_rank=25%", "a smaller subspace", 1.5},
    {"galore_rank=12.5%", "a smaller subspace", 2.25},
    {"galore_side=big", "larger subspaces, smaller moments", 1.02},
}};

// Weights in the order in which their subspaces are refreshed: block by block, as van der Corput's
// sequence visits them, first and second half of the model in turn, and so the halves of these. So
// the windows that are open at a time lie in all stages of a pipeline, and with them the memory
// that they take and the time of their refreshes.
std::vector<WeightSpec> in_order_of_refreshes(std::span<const WeightSpec> weights) {
  int64_t blocks = 1;
  for (const WeightSpec& weight : weights) blocks = std::max(blocks, weight.layer + 1);
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(blocks - 1)));
  const auto place_of = [&](int64_t block) {
    int64_t place = 0;
    for (int bit = 0; bit < bits; ++bit) place |= (block >> bit & 1) << (bits - 1 - bit);
    return place;
  };
  std::vector<WeightSpec> order(weights.begin(), weights.end());
  std::ranges::stable_sort(order, {}, [&](const WeightSpec& weight) {
    return weight.layer < 0 ? -1 : place_of(weight.layer);
  });
  return order;
}

// The refresh schedule of one matrix' subspace, in the layout that checkpoints keep.
struct RefreshSchedule {
  int64_t gap = 0;
  int64_t next = 0;      // the next refresh is before this step
  int64_t done = 0;      // refreshes so far
  int64_t overlaps = 0;  // consecutive refreshes whose overlap reached lazy_overlap
  int64_t open = 0;      // 1: the matrix is in a window
};

class GaloreLearner : public Learner {
 public:
  explicit GaloreLearner(const OptionSet& options) : settings_(options) {}

  const char* name() const override { return "galore"; }
  bool changes(const WeightSpec&) const override { return true; }
  bool updates_in_place(const WeightSpec&) const override { return true; }

  void plan(std::span<const WeightSpec> weights) override {
    settings_.settle(weights);
    for (const WeightSpec& weight : weights) {
      if (!settings_.targets(weight)) continue;
      check_worth(weight);
      targets_.push_back(weight);
    }
    for (const WeightSpec& weight : in_order_of_refreshes(targets_)) {
      places_.emplace(weight.name, places_.size());
    }
    gap_ = settings_.gap_of(settings_.max_steps);
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
    // Where the number of steps is not known yet, for whatever gap it leads to.
    const int64_t longest = settings_.max_steps == 0 ? settings_.gap_of(kLongRun) : gap_;
    const std::vector<Turn> all = turns();
    int64_t worst = 0;
    for (int64_t gap = gap_; gap <= longest; ++gap)
      worst = std::max(worst, worst_windows(all, gap));
    memory_->allocate(Purpose::projections, worst);
  }

  void begin_run(int64_t total_steps) override {
    total_steps_ = total_steps;
    if (settings_.max_steps == 0) gap_ = settings_.gap_of(total_steps);
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
      if (schedule.open != 0 || step < schedule.next - window()) continue;
      slots_[i]->open_window();
      schedule.open = 1;
      changed = true;
    }
    return changed;
  }

  // Refreshes every matrix and leaves each in a window: the most scratch memory of either.
  int64_t rehearsal_cases() const override { return 1; }
  void enter_rehearsal_case(Context& context, int64_t) override {
    held_ = true;
    for (GaloreSlot* slot : slots_) {
      slot->open_window();
      slot->refresh(context, 1);
      slot->open_window();
    }
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
      if (is_own(*slots_[i], schedule)) {
        slots_[i]->open_window();
        continue;
      }
      // Of other settings, whose windows nothing was booked for: fit_schedules() begins another.
      slots_[i]->leave_window_unread();
      schedule.open = 0;
    }
    resumed_ = true;
  }

  LearnerNotes notes() const override {
    // Of the whole model: the stage of a pipeline that tells it may have no target.
    LearnerNotes notes;
    notes.lines.push_back(
        fmt::format("{} matrices in subspaces of rank {} ({}), kept as {}, refreshed every {}{}",
                    targets_.size(), settings_.rank.text, targets_.front().name,
                    settings_.projection->name(), counted(gap_, "step"),
                    settings_.has_windows()
                        ? fmt::format(" from the gradients of {}", counted(window(), "step"))
                        : " at random"));
    notes.lines.push_back(fmt::format(
        "their elements move as with a learning rate of {} in full training", element_rates()));
    if (!worthless_.empty()) notes.warnings.push_back(worthless_);
    if (!settings_.stochastic && !rounds_) {
      notes.warnings.push_back(
          "update_rounding=nearest has no effect: weights are stored exactly, in f32");
    }
    // The first turn of all is before step window().
    const bool any =
        window() < total_steps_ ||
        std::any_of(refreshes_.begin(), refreshes_.end(), [&](const RefreshSchedule& schedule) {
          return schedule.done > 0 || schedule.next < total_steps_;
        });
    if (!any && total_steps_ > 0) {
      notes.warnings.push_back(fmt::format(
          "no subspace is refreshed in {}: all stay random; lower projection_update_gap",
          counted(total_steps_, "step")));
    }
    return notes;
  }

  std::vector<LearnerEvent> take_events() override { return std::exchange(events_, {}); }

 private:
  int64_t window() const { return settings_.window_of(gap_); }

  // The steps by which the refreshes of the matrix at a place come after those of the first matrix.
  // Gaps grow by doubling, so that this stays the same modulo the gap.
  int64_t offset(int64_t place, int64_t gap) const {
    return settings_.stagger ? gap * place / static_cast<int64_t>(places_.size()) : 0;
  }
  int64_t place_of(const GaloreSlot& slot) const {
    return static_cast<int64_t>(places_.at(slot.name()));
  }

  void plan_refreshes() {
    refreshes_.clear();
    for (const GaloreSlot* slot : slots_) {
      refreshes_.push_back({.gap = gap_, .next = window() + offset(place_of(*slot), gap_)});
    }
  }

  // Whether a schedule is one that these settings make. Lazy gaps grow by doubling, up to the
  // longest.
  bool is_own(const GaloreSlot& slot, const RefreshSchedule& schedule) const {
    const auto times = static_cast<uint64_t>(schedule.gap / gap_);
    const bool gap = schedule.gap % gap_ == 0 && schedule.gap <= settings_.longest_gap_of(gap_) &&
                     (settings_.lazy_overlap > 0.0 ? std::has_single_bit(times) : times == 1);
    return gap && (schedule.next - window() - offset(place_of(slot), gap_)) % gap_ == 0;
  }

  // A run that goes on with another gap or window, or other turns, takes them from `step` on: a
  // matrix is refreshed next after the first whole window that its turn allows.
  void fit_schedules(int64_t step) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      RefreshSchedule& schedule = refreshes_[i];
      if (is_own(*slots_[i], schedule)) continue;
      const int64_t turn = offset(place_of(*slots_[i]), gap_);
      const int64_t gaps = ceil_div(std::max<int64_t>(0, step - turn), gap_);
      schedule = {.gap = gap_, .next = window() + turn + gaps * gap_, .done = schedule.done};
    }
  }

  struct Turn {
    int64_t place, bytes;  // of a window
  };
  std::vector<Turn> turns() const {
    std::vector<Turn> all;
    for (const GaloreSlot* slot : slots_) all.push_back({place_of(*slot), slot->window_bytes()});
    std::ranges::sort(all, {}, &Turn::place);
    return all;
  }

  // The most bytes that windows take at once, with refreshes that are so many steps apart.
  int64_t worst_windows(std::span<const Turn> turns, int64_t gap) const {
    const int64_t window = settings_.window_of(gap);
    const auto step_of = [&](size_t i) {
      const auto lap = static_cast<int64_t>(i / turns.size());
      return offset(turns[i % turns.size()].place, gap) + lap * gap;
    };
    // Two laps: windows that open at the end of a gap are open when the next one begins.
    int64_t open = 0, worst = 0;
    size_t oldest = 0;
    for (size_t i = 0; i < 2 * turns.size(); ++i) {
      open += turns[i % turns.size()].bytes;
      for (; step_of(i) - step_of(oldest) >= window; ++oldest) {
        open -= turns[oldest % turns.size()].bytes;
      }
      worst = std::max(worst, open);
    }
    return worst;
  }

  // Thin products are worth it while rank * (rows + cols) < rows * cols.
  void check_worth(const WeightSpec& weight) {
    if (!worthless_.empty()) return;
    const int64_t rank = settings_.rank_of(weight);
    const int64_t even = weight.size() / (weight.rows + weight.cols);
    if (rank <= even) return;
    worthless_ = fmt::format(
        "rank {} of {} [{}, {}] takes more arithmetic than its whole gradient: a rank of {} breaks "
        "even; lower galore_rank, or use method=full",
        rank, weight.name, weight.rows, weight.cols, even);
  }

  void refresh(Context& context, GaloreSlot& slot, RefreshSchedule& schedule, int64_t step) {
    context.ops.finish();  // so that the stopwatch measures the refresh alone
    const Stopwatch watch;
    schedule.done += 1;
    const double overlap = slot.refresh(context, narrow<uint32_t>(schedule.done));
    schedule.open = 0;
    if (settings_.lazy_overlap > 0.0) {
      const double chance = slot.chance_overlap();
      const bool alike = overlap - chance >= settings_.lazy_overlap * (1.0 - chance);
      schedule.overlaps = alike ? schedule.overlaps + 1 : 0;
      if (schedule.overlaps == 2) {
        // Twice as long or not at all: turns are taken modulo the first gap.
        if (2 * schedule.gap <= settings_.longest_gap_of(gap_)) schedule.gap *= 2;
        schedule.overlaps = 0;
      }
    }
    schedule.next = step + schedule.gap;
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
  std::vector<WeightSpec> targets_;       // of the whole model
  std::map<std::string, size_t> places_;  // of targets_, by name: their order of refreshes
  std::vector<GaloreSlot*> slots_;
  std::vector<RefreshSchedule> refreshes_;  // of slots_
  Memory* memory_ = nullptr;                // of the device
  int64_t gap_ = 0;
  int64_t total_steps_ = 0;
  std::string worthless_;  // a warning
  bool rounds_ = false;    // whether the storage of any weight does
  bool held_ = false;      // set while a phase is rehearsed: nothing is refreshed
  bool resumed_ = false;   // until the first step from a checkpoint
  std::vector<LearnerEvent> events_;
};

}  // namespace

std::span<const Saving> galore_savings() {
  return kSavings;
}

std::unique_ptr<Learner> make_galore_learner(const OptionSet& options) {
  return std::make_unique<GaloreLearner>(options);
}

}  // namespace jackscrew
