#include "learners/rotary.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "learners/frozen.h"
#include "learners/full.h"
#include "learners/rotary_groups.h"
#include "learners/rotary_options.h"
#include "learners/rotary_transit.h"
#include "learners/rotation_parts.h"

namespace jackscrew {

namespace {

// Checkpoints keep these bytes before the state of the rotation.
struct RotationPace {
  int64_t next_rotation = 0;  // the step before which it happens
  int64_t steps_per_rotation = 0;
};

// A rotation in progress: until every leaving slot has been flushed.
struct RotationInProgress {
  // Groups that leave, and their squared changes; of those whose masters have the values with which
  // they joined.
  std::vector<std::pair<int32_t, double>> changes;
  std::vector<int32_t> joining;
};

class RotaryLearner : public Learner {
 public:
  explicit RotaryLearner(const OptionSet& options) : options_(options) {}

  const char* name() const override { return "rotary"; }
  bool masters_in_files() const override { return options_.masters_in_files; }

  bool changes(const WeightSpec& weight) const override {
    return weight.is_block_matrix() ? options_.rotates(weight.module)
                                    : options_.static_weights != "freeze";
  }

  void plan(std::span<const WeightSpec> weights) override {
    for (const WeightSpec& weight : weights) {
      if (rotates(weight)) groups_.add(weight);
    }
  }

  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) override {
    if (!context.training || !changes(weight.spec())) {
      if (weight.spec().is_block_matrix() && options_.rounds(weight.format(), weight.cols())) {
        frozen_and_rounded_.insert(weight.spec().module);
      }
      return std::make_unique<FrozenSlot>();
    }
    if (!rotates(weight.spec())) {
      return make_full_slot(context, weight, options_.scale_of(options_.static_learning_rate));
    }
    seed_ = context.seed;
    memory_ = &context.memory;
    sum_over_stages_ = context.sum_over_stages;
    (weight.as_f32().empty() ? has_rounded_ : has_exact_) = true;
    RotarySlot::Settings settings = options_.slots;
    settings.score = settings.score && !context.is_measured_elsewhere(weight.spec());
    auto slot = std::make_unique<RotarySlot>(context, weight, settings);
    groups_.add_slot(weight.spec(), *slot);
    return slot;
  }

  void reserve(Context& context) override {
    begin();
    const auto worst = rotation_->heaviest(groups_.sums_here(&RotarySlot::active_bytes));
    groups_.activate(context, worst);
    copies_beside_steps_ = context.ops.has_async_copy();
    if (options_.overlap && copies_beside_steps_) transit_.set_limit(transit_limit(worst));
    reserve_rotation();
    for (const int32_t group : worst) {
      groups_.retire(context, group);
      for (RotarySlot* slot : groups_[group].slots) slot->set_has_moments(false);
    }
  }

  void begin_run(int64_t total_steps) override {
    total_steps_ = total_steps;
    if (options_.steps_per_rotation) return;
    steps_per_rotation_ = RotaryOptions::automatic_steps(total_steps, windows_of_a_round_,
                                                         rotation_->windows_of_a_turn());
  }

  bool begin_step(Context& context, int64_t step) override {
    if (held_) return false;
    if (transit_.is_used() && step + 1 == next_rotation_) prepare_next();
    if (step < next_rotation_) return false;
    rotate(context);
    next_rotation_ = step + steps_per_rotation_;
    save_state();
    return true;
  }

  void overlap_with_step(Context& context) override {
    if (!transit_.has_work()) return;
    const Stopwatch watch;
    transit_.work(context, [&](int32_t group, double change) { add_change(group, change); });
    seconds_beside_ += watch.seconds();
    if (in_progress_) log_rotation();
  }

  // Case 0 has every group active, as no step has unless none rotates, case 1 none, case 2 those of
  // heaviest_groups(), with at least as many gradients here as any that can be active at once, each
  // other case one group of one kind alone. So forward and backward meet weights of every kind both
  // active and waiting: all of them wait before the first rotation, and of a pipeline's stage in
  // some windows.
  int64_t rehearsal_cases() const override { return 3 + std::ssize(groups_.first_of_kind()); }

  bool enter_rehearsal_case(Context& context, int64_t rehearsal_case) override {
    held_ = true;
    const std::vector<int32_t> all = groups_.numbers();
    for (const int32_t group : all) {
      const std::vector<RotarySlot*>& slots = groups_[group].slots;
      if (!slots.empty() && slots[0]->learns()) groups_.retire(context, group);
    }
    if (rehearsal_case == 0) {
      groups_.activate(context, all);
    } else if (rehearsal_case == 2) {
      groups_.activate(context, rotation_->heaviest(groups_.sums_here(&RotarySlot::size)));
    } else if (rehearsal_case > 2) {
      const auto first = groups_.first_of_kind();
      groups_.activate(context,
                       std::span(first).subspan(static_cast<size_t>(rehearsal_case) - 3, 1));
    }
    return rehearsal_case > 0;
  }

  void visit(const StateVisitor& visitor) const override {
    if (rotation_) visitor({"rotary.rotation", StateRole::learner, state_view(), true});
  }

  void restored(Context& context) override {
    const std::vector<int32_t> before(rotation_->active().begin(), rotation_->active().end());
    transit_.forget_joining();
    restore_state();
    for (const int32_t group : before) groups_.retire(context, group);
    for (const int32_t group : groups_.numbers()) {
      const bool has_been_active = rotation_->turns()[static_cast<size_t>(group)] > 0;
      for (RotarySlot* slot : groups_[group].slots) slot->set_has_moments(has_been_active);
    }
    groups_.activate(context, rotation_->active());
    for (const int32_t group : rotation_->active()) groups_[group].joined_unseen = true;
    for (const RotaryGroup& group : groups_.all()) {
      for (RotarySlot* slot : group.slots) slot->detach_master_file();
    }
  }

  LearnerNotes notes() const override {
    LearnerNotes notes;
    warn_of_idle_settings(notes.warnings);
    if (!frozen_and_rounded_.empty()) {
      notes.warnings.push_back(
          fmt::format("{} learn nothing, and the result has them as storage={} rounds them: set "
                      "rotation_groups=attention,mlp, which trains them, too, or storage=keep",
                      fmt::join(frozen_and_rounded_, ", "), options_.storage));
    }
    const std::string rates = fmt::format(
        "learning rate {:.3g}{}", options_.group_rate(share()),
        options_.static_weights == "train"
            ? fmt::format(", embedding, norms and head {:.3g}", options_.static_learning_rate)
            : "");
    if (all_are_active()) {
      notes.lines.push_back(
          fmt::format("all {} groups of {} are active, {} parameters: none rotates", groups_.size(),
                      options_.groups_text(), human_count(groups_.elements())));
      notes.lines.push_back(rates);
      return notes;
    }
    notes.lines.push_back(
        fmt::format("{} groups of {}, at most {} of {} parameters at once ({:.0f}%)",
                    groups_.size(), options_.groups_text(), human_count(active_elements_),
                    human_count(groups_.elements()), 100.0 * share()));
    notes.lines.push_back(fmt::format("{:.0f}% of them change every {}; {}", 100.0 * options_.churn,
                                      counted(steps_per_rotation_, "step"), rates));
    const int64_t windows = ceil_div(total_steps_, steps_per_rotation_);
    RotationParts ahead = *rotation_;
    const auto count_waiting = [&] { return std::ranges::count(ahead.turns(), 0); };
    while (ahead.window() < windows && count_waiting() > 0) ahead.advance();
    const int64_t waiting = count_waiting();
    if (waiting > 0) {
      notes.warnings.push_back(
          fmt::format("in {} only {} of {} groups are trained: a round takes {}; lower "
                      "steps_per_rotation, raise active_params, or train longer",
                      counted(total_steps_, "step"), groups_.size() - waiting, groups_.size(),
                      counted(windows_of_a_round_ * steps_per_rotation_, "step")));
    }
    return notes;
  }

  std::vector<LearnerEvent> take_events() override { return std::exchange(events_, {}); }

 private:
  bool all_are_active() const { return active_elements_ == groups_.elements(); }

  void warn_of_idle_settings(std::vector<std::string>& warnings) const {
    const auto warn_of = [&](const std::vector<std::string>& settings, const char* why) {
      for (const std::string& setting : settings) {
        warnings.push_back(fmt::format("{} has no effect: {}", setting, why));
      }
    };
    if (all_are_active()) {
      warn_of(options_.of_rotations, "all groups are active, and none rotates");
    } else if (options_.overlap && !copies_beside_steps_) {
      warn_of({"overlap_rotation=true"}, "the CPU's copies do not run beside steps");
    }
    if (has_exact_ && !has_rounded_)
      warn_of(options_.of_masters, "weights are stored exactly, in f32");
  }

  Tensor state_view() const {
    // Visitors may write: restoring a checkpoint does.
    auto* bytes = const_cast<uint8_t*>(state_.data());
    return {bytes, DType::u8, {static_cast<int64_t>(state_.size())}};
  }

  void save_state() {
    const RotationPace pace{next_rotation_, steps_per_rotation_};
    std::memcpy(state_.data(), &pace, sizeof pace);
    rotation_->save(std::span(state_).subspan(sizeof pace));
  }
  void restore_state() {
    RotationPace pace;
    std::memcpy(&pace, state_.data(), sizeof pace);
    if (pace.next_rotation < 0 || pace.steps_per_rotation < 1) {
      fail(ErrorKind::model, "the rotation state is damaged");
    }
    rotation_->restore(std::span(state_).subspan(sizeof pace));
    next_rotation_ = pace.next_rotation;
    // A run that is resumed with more steps keeps its pace.
    if (!options_.steps_per_rotation) steps_per_rotation_ = pace.steps_per_rotation;
  }

  // Whether the weight takes turns, rather than learning always or never. Parameters of products
  // are too small to be worth rotating.
  bool rotates(const WeightSpec& weight) const {
    return changes(weight) && weight.kind != WeightKind::product &&
           (weight.is_block_matrix() || options_.static_weights == "rotate");
  }

  // Called once all slots exist: sizes, and with them shares and learning rates, are known.
  void begin() {
    if (rotation_) return;
    if (groups_.size() == 0) {
      throw Error(ErrorKind::usage, "no weight rotates", "see rotation_groups and static");
    }
    active_elements_ = options_.active_elements(groups_.elements());
    options_.check_parts(groups_.blocks());
    options_.check_group_decay(share());
    std::vector<int64_t> sizes;
    std::vector<int32_t> parts;
    for (const RotaryGroup& group : groups_.all()) {
      sizes.push_back(group.size);
      parts.push_back(group.part);
    }
    rotation_.emplace(sizes, parts,
                      RotationOptions{options_.order, active_elements_, options_.churn, seed_});
    windows_of_a_round_ = rotation_->windows_of_a_round(4 * groups_.size());
    state_.resize(sizeof(RotationPace) + static_cast<size_t>(rotation_->state_bytes()));
    save_state();
    for (const RotaryGroup& group : groups_.all()) {
      for (RotarySlot* slot : group.slots) {
        slot->set_learning_rate_scale(options_.scale_of(options_.group_rate(share())));
      }
    }
  }

  double share() const {
    return static_cast<double>(active_elements_) / static_cast<double>(groups_.elements());
  }

  // The most that weights in transit may take beside the active groups `worst`: the share of these
  // that changes at a rotation, or the largest weight if that is more.
  int64_t transit_limit(std::span<const int32_t> worst) const {
    int64_t all = 0;
    int64_t largest = 0;
    for (const int32_t group : worst) {
      for (const RotarySlot* slot : groups_[group].slots) {
        all += slot->moving_bytes();
        largest = std::max(largest, slot->moving_bytes());
      }
    }
    return std::max(largest, static_cast<int64_t>(options_.churn * static_cast<double>(all)));
  }

  // Allocates for a moment the most that a rotation takes beside the active groups: weights in
  // transit, and the storage of those that leave. Any may be the first of them, and what follows
  // has its memory, unless it is kept for the transit.
  void reserve_rotation() {
    int64_t largest = 0;
    int64_t all = 0;
    for (const RotaryGroup& group : groups_.all()) {
      for (const RotarySlot* slot : group.slots) {
        const int64_t bytes = std::max<int64_t>(0, slot->leaving_bytes());
        largest = std::max(largest, bytes);
        all += bytes;
      }
    }
    const int64_t bytes = transit_.is_used() ? transit_.limit() + all : largest;
    if (bytes > 0) memory_->allocate(Purpose::weights, bytes);
  }

  // Returns the groups that are not in `others`.
  static std::vector<int32_t> without(std::span<const int32_t> groups,
                                      std::span<const int32_t> others) {
    std::vector<int32_t> out;
    for (const int32_t g : groups) {
      if (std::find(others.begin(), others.end(), g) == others.end()) out.push_back(g);
    }
    return out;
  }

  void prepare_next() {
    RotationParts next = *rotation_;
    next.advance();
    for (const int32_t group : without(next.active(), rotation_->active())) {
      for (RotarySlot* slot : groups_[group].slots) transit_.prepare(*slot);
    }
  }

  void rotate(Context& context) {
    const std::vector<int32_t> before(rotation_->active().begin(), rotation_->active().end());
    if (options_.slots.score) {
      for (const int32_t group : before) rotation_->set_score(group, take_score(context, group));
    }
    context.ops.finish();  // weights in transit have arrived; the stopwatch measures the rotation
    const Stopwatch watch;
    rotation_->advance();
    in_progress_.emplace();
    // Everything is freed before anything is allocated: the peak is that of the larger set.
    for (const int32_t group : without(before, rotation_->active())) {
      const bool unseen = std::exchange(groups_[group].joined_unseen, false);
      if (!unseen && std::ranges::any_of(groups_[group].slots, &RotarySlot::measures_change)) {
        in_progress_->changes.emplace_back(group, 0.0);
      }
      for (RotarySlot* slot : groups_[group].slots) {
        slot->leave(context);
        if (transit_.try_enqueue_leaving(group, *slot)) continue;
        add_change(group, slot->flush(context));
      }
    }
    transit_.arrive();
    in_progress_->joining = without(rotation_->active(), before);
    groups_.activate(context, in_progress_->joining);
    fetch_ahead();
    context.ops.finish();  // from here on leaving weights may be copied beside the steps
    seconds_ += watch.seconds();
    if (!transit_.has_work()) log_rotation();
  }

  void add_change(int32_t group, double change) {
    if (!std::isfinite(change)) {
      throw Error(ErrorKind::non_finite,
                  fmt::format("weights of {} are no longer finite", groups_[group].name),
                  "lower learning_rate or group_learning_rate, or lengthen the warm-up");
    }
    for (auto& [left, sum] : in_progress_->changes) sum += left == group ? change : 0.0;
  }

  void log_rotation() {
    JsonObject left, joined;
    for (const auto& [group, change] : in_progress_->changes) {
      left.add(groups_[group].name, change);
    }
    // Groups of other stages are in those stages' events.
    for (const int32_t group : in_progress_->joining) {
      if (groups_[group].slots.empty()) continue;
      joined.add(groups_[group].name, rotation_->turns()[static_cast<size_t>(group)]);
    }
    events_.push_back({"rotate", JsonObject()
                                     .add("window", rotation_->window())
                                     .add("squared_change", left)
                                     .add("turns", joined)
                                     .add("seconds", std::exchange(seconds_, 0.0))
                                     .add("seconds_beside", std::exchange(seconds_beside_, 0.0))});
    in_progress_.reset();
  }

  // Has the masters of the next window's groups read ahead, as far as those are known now.
  void fetch_ahead() {
    RotationParts next = *rotation_;
    next.advance();
    for (const int32_t g : next.active()) {
      for (RotarySlot* slot : groups_[g].slots) {
        if (!slot->learns()) slot->will_need();
      }
    }
  }

  // The group's score in the window that ends: earlier windows do not count, or groups that stayed
  // active would look more important.
  double take_score(Context& context, int32_t group) {
    const RotaryGroup& g = groups_[group];
    const double squares = sum_over_stages_([&](double sum) {
      for (RotarySlot* slot : g.slots) sum += slot->take_gradient_score(context);
      return sum;
    });
    // A root mean square, so that a group is not important for its size alone.
    return std::sqrt(squares / static_cast<double>(g.size)) + 1e-30;
  }

  RotaryOptions options_;
  int64_t steps_per_rotation_ = options_.steps_per_rotation.value_or(RotaryOptions::kLongestWindow);
  uint64_t seed_ = 0;
  SumOverStages sum_over_stages_;

  RotaryGroups groups_{options_};
  int64_t active_elements_ = 0;  // the most that are active at once
  std::optional<RotationParts> rotation_;
  int64_t windows_of_a_round_ = 0;  // from the beginning of a run
  int64_t total_steps_ = 0;
  int64_t next_rotation_ = 0;                     // the step before which it happens
  bool held_ = false;                             // set while a case is rehearsed: nothing rotates
  bool has_exact_ = false, has_rounded_ = false;  // weights that rotate, as they are stored
  std::set<std::string> frozen_and_rounded_;      // modules that do not learn and lose bits
  bool copies_beside_steps_ = false;
  Memory* memory_ = nullptr;  // of the device
  RotaryTransit transit_;
  std::optional<RotationInProgress> in_progress_;
  double seconds_ = 0.0;         // of rotations since the last event, for which steps waited
  double seconds_beside_ = 0.0;  // of copies since the last event, which ran beside steps
  std::vector<uint8_t> state_;   // of the rotation, as checkpoints see it
  std::vector<LearnerEvent> events_;
};

}  // namespace

std::unique_ptr<Learner> make_rotary_learner(const OptionSet& options) {
  return std::make_unique<RotaryLearner>(options);
}

}  // namespace jackscrew
