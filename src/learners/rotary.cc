#include "learners/rotary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "learners/frozen.h"
#include "learners/full.h"
#include "learners/rotary_transit.h"
#include "learners/rotation.h"

namespace jackscrew {

namespace {

constexpr std::array<OptionSpec, 12> kOptions = {{
    {"active_params", OptionType::text, "7%",
     "most weights trained at once: a share of those that rotate (10%) or a number (300M)"},
    {"rotation_groups", OptionType::list, "matrix",
     "what is activated together: attention and mlp of a block (or one of them alone), block, "
     "matrix",
     "", "attention mlp block matrix"},
    {"rotation_order", OptionType::text, "permutation",
     "permutation: all once a round; random; ascending; descending; importance: by gradient", "",
     "permutation random ascending descending importance"},
    {"steps_per_rotation", OptionType::integer, "auto",
     "steps from one rotation to the next; auto: 50, or fewer in a short run, with turns of at "
     "least 10",
     "reshufle_steps", "auto", 1, 1e9},
    {"churn", OptionType::number, "0.5", "fraction of the active groups replaced at a rotation", "",
     "", 0.01, 1},
    {"moments", OptionType::text, "keep",
     "Adam moments of waiting groups: keep (on the host) or reset", "", "reset keep"},
    {"static", OptionType::text, "train",
     "embedding, norms and head: train (always), rotate (as groups), freeze", "",
     "train rotate freeze"},
    {"group_learning_rate", OptionType::number, "auto",
     "learning rate of the active groups; auto: learning_rate, or up to 4 times that where few are "
     "active, at most 1e-3",
     "", "auto", 0},
    {"static_learning_rate", OptionType::number, "auto",
     "learning rate of embedding, norms and head; auto: learning_rate", "", "auto", 0},
    {"master", OptionType::text, "ram",
     "where the exact values of waiting groups are: ram, or mmap (files in output_dir)", "",
     "ram mmap"},
    {"master_dtype", OptionType::text, "f32",
     "exact values of waiting groups: f32, or bf16 by stochastic rounding", "", "f32 bf16"},
    {"overlap_rotation", OptionType::boolean, "false",
     "on a GPU: overlap the copies of rotations with the steps; takes 6 bytes of its memory per "
     "weight"},
}};

// Files cost a read and a write of a group a rotation. What halves the active weights or rounds the
// masters costs learning, and is worth less than anything that costs time alone.
constexpr std::array<Saving, 8> kSavings = {{
    {"overlap_rotation=false", "steps wait for the copies of a rotation", 1.01},
    {"moments=reset", "moments are reset at every turn", 1.3},
    {"master=mmap", "exact values wait in files", 1.02},
    {"master_dtype=bf16", "exact values rounded stochastically", 1.5},
    {"active_params=50%", "a round takes longer", 1.5},
    {"active_params=25%", "a round takes longer", 2.25},
    {"active_params=10%", "a round takes longer", 3.4},
    {"active_params=5%", "a round takes longer", 5.1},
}};

// auto: as long as every group can have two turns. Longer is better where there is time for it; a
// turn of less than 10 steps ends before its moments mean anything.
constexpr int64_t kLongestWindow = 50;
constexpr int64_t kShortestTurn = 10;

// A group learns in a share of the steps: a rate that is higher by as much takes its weights as far
// as full training would (SmolLM2-135M, a quarter active: docs/methods.md). Not beyond what AdamW
// is known to bear, though: rates for training from scratch are as high already as they can be (a
// small Llama: 1e-3 is better than 2e-3, for a quarter of it as for all).
double automatic_group_rate(double learning_rate, double share) {
  constexpr double kHighestScale = 4.0;  // the most that was measured
  constexpr double kHighestScaledRate = 5e-4;
  constexpr double kHighestRate = 1e-3;
  const double scaled = learning_rate * std::min(kHighestScale, 1.0 / share);
  return std::min(kHighestRate, std::max(learning_rate, std::min(scaled, kHighestScaledRate)));
}

bool is_attention(std::string_view module) {
  return module == "q_proj" || module == "k_proj" || module == "v_proj" || module == "o_proj";
}

// "10%" or "300M" of `total` elements.
int64_t parse_active_params(const std::string& text, int64_t total) {
  const auto refuse = [&](const char* why) {
    throw Error(ErrorKind::usage, fmt::format("active_params={} {}", text, why),
                "give a share such as 10%, or a number of parameters such as 300M");
  };
  size_t used = 0;
  double value = 0.0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    refuse("is not a number");
  }
  const std::string unit = text.substr(used);
  if (unit == "%") {
    value *= static_cast<double>(total) / 100.0;
  } else if (unit == "K" || unit == "k") {
    value *= 1e3;
  } else if (unit == "M" || unit == "m") {
    value *= 1e6;
  } else if (unit == "B" || unit == "b" || unit == "G") {
    value *= 1e9;
  } else if (!unit.empty()) {
    refuse("has an unknown unit");
  }
  if (!(value >= 1.0)) refuse("trains nothing");
  if (value > static_cast<double>(total) * (1.0 + 1e-9)) {
    throw Error(ErrorKind::usage,
                fmt::format("active_params={} is more than the {} parameters that rotate", text,
                            human_count(total)),
                "set active_params=100%, or method=full");
  }
  return std::min(total, static_cast<int64_t>(std::llround(value)));
}

constexpr size_t kStateSteps = 2;

struct Group {
  std::string name;
  std::vector<RotarySlot*> slots;
  int64_t size = 0;  // elements
};

// A rotation until all that leaves has left.
struct Turn {
  std::vector<std::pair<int32_t, double>> changes;  // groups that leave, their squared changes
  std::vector<int32_t> joining;
};

class RotaryLearner : public Learner {
 public:
  explicit RotaryLearner(const OptionSet& options)
      : active_params_(options.text("active_params")),
        order_(parse_rotation_order(options.text("rotation_order"))),
        steps_per_rotation_(options.is_word("steps_per_rotation")
                                ? kLongestWindow
                                : options.integer("steps_per_rotation")),
        chooses_steps_(options.is_word("steps_per_rotation")),
        churn_(options.number("churn")),
        static_(options.text("static")),
        learning_rate_(options.number("learning_rate")) {
    for (const std::string& group : options.list("rotation_groups")) {
      by_attention_ = by_attention_ || group == "attention";
      by_mlp_ = by_mlp_ || group == "mlp";
      by_block_ = by_block_ || group == "block";
      by_matrix_ = by_matrix_ || group == "matrix";
    }
    if ((by_block_ && by_matrix_) || ((by_block_ || by_matrix_) && (by_attention_ || by_mlp_))) {
      throw Error(ErrorKind::usage, "rotation_groups names groups that overlap",
                  "use attention,mlp, or one of attention, mlp, block, matrix");
    }
    masters_in_files_ = options.text("master") == "mmap";
    settings_.master = options.text("master_dtype") == "bf16" ? DType::bf16 : DType::f32;
    settings_.keep_moments = options.text("moments") == "keep";
    settings_.score = order_ == RotationOrder::importance;
    overlaps_ = options.boolean("overlap_rotation");
    if (overlaps_ && settings_.master == DType::bf16) {
      throw Error(ErrorKind::usage, "overlap_rotation copies exact values as they are kept",
                  "set master_dtype=f32, or overlap_rotation=false");
    }
    if (overlaps_ && settings_.score) {
      throw Error(
          ErrorKind::usage,
          "with rotation_order=importance the groups that join are known only at the rotation",
          "set another rotation_order, or overlap_rotation=false");
    }
    if (!options.is_word("group_learning_rate")) {
      group_rate_ = options.number("group_learning_rate");
    }
    static_rate_ = options.is_word("static_learning_rate") ? learning_rate_
                                                           : options.number("static_learning_rate");
  }

  const char* name() const override { return "rotary"; }
  bool masters_in_files() const override { return masters_in_files_; }

  bool changes(WeightKind kind, std::string_view module) const override {
    return kind == WeightKind::linear && module != "lm_head" ? rotates(module)
                                                             : static_ != "freeze";
  }

  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context,
                                         const WeightInfo& info) override {
    if (!context.training || !changes(info.kind, info.module)) {
      return std::make_unique<FrozenSlot>();
    }
    const bool in_block = info.kind == WeightKind::linear && info.module != "lm_head";
    if (!in_block && static_ == "train") {
      return make_full_slot(context, info, scale_of(static_rate_));
    }
    seed_ = context.seed;
    memory_ = &context.memory;
    auto slot = std::make_unique<RotarySlot>(context, info, settings_);
    add_to_group(group_name(info), slot.get());
    return slot;
  }

  void reserve(Context& context) override {
    begin();
    std::vector<int64_t> sizes, bytes;
    for (const Group& group : groups_) {
      sizes.push_back(group.size);
      int64_t taken = 0;
      for (const RotarySlot* slot : group.slots) taken += slot->active_bytes();
      bytes.push_back(taken);
    }
    const auto worst = heaviest_groups(sizes, bytes, active_elements_);
    activate(context, worst);
    if (overlaps_ && context.ops.copies_beside()) reserve_transit(worst);
    for (const int32_t group : worst) retire(context, group);
    for (const int32_t group : worst) {
      for (RotarySlot* slot : slots_of(group)) slot->expect_moments(false);
    }
  }

  void begin_run(int64_t total_steps) override {
    total_steps_ = total_steps;
    if (!chooses_steps_) return;
    const auto shortest = static_cast<int64_t>(
        std::lround(static_cast<double>(kShortestTurn) / rotation_->windows_of_a_turn()));
    steps_per_rotation_ = std::clamp(total_steps / (2 * windows_of_a_round()),
                                     std::max<int64_t>(1, shortest), kLongestWindow);
  }

  bool begin_step(Context& context, int64_t step) override {
    if (held_) return false;
    if (transit_.is_used() && step + 1 == next_rotation_) expect_next();
    if (step < next_rotation_) return false;
    rotate(context);
    next_rotation_ = step + steps_per_rotation_;
    save_state();
    return true;
  }

  void beside_step(Context& context) override {
    if (!transit_.has_work()) return;
    const Stopwatch watch;
    transit_.work(context, [&](int32_t group, double change) { add_change(group, change); });
    seconds_beside_ += watch.seconds();
    if (turn_) log_turn();
  }

  // Everything active, and one group of each kind by itself: then weights of every kind are passed
  // in both forms, in forward and in backward.
  int64_t phases() const override { return 1 + static_cast<int64_t>(first_of_kind().size()); }

  void enter_phase(Context& context, int64_t phase) override {
    held_ = true;
    std::vector<int32_t> all(groups_.size());
    std::iota(all.begin(), all.end(), 0);
    for (const int32_t group : all) {
      if (!slots_of(group)[0]->learns()) continue;
      retire(context, group);
    }
    if (phase == 0) {
      activate(context, all);
    } else {
      activate(context, std::vector<int32_t>{first_of_kind()[static_cast<size_t>(phase) - 1]});
    }
  }

  void visit(const StateVisitor& visitor) const override {
    if (rotation_) visitor({"rotary.rotation", StateRole::schedule, state_view(), true});
  }

  void restored(Context& context) override {
    const std::vector<int32_t> before(rotation_->active().begin(), rotation_->active().end());
    transit_.forget();
    restore_state();
    for (const int32_t group : before) retire(context, group);
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (RotarySlot* slot : groups_[g].slots) slot->expect_moments(rotation_->turns()[g] > 0);
    }
    activate(context, rotation_->active());
    for (const Group& group : groups_) {
      for (RotarySlot* slot : group.slots) slot->expect_master();
    }
  }

  LearnerNotes notes() const override {
    LearnerNotes notes;
    const int64_t windows = ceil_div(total_steps_, steps_per_rotation_);
    notes.lines.push_back(fmt::format(
        "{} groups of {}, at most {} of {} parameters at once ({:.0f}%)", groups_.size(), kinds(),
        human_count(active_elements_), human_count(total_elements_), 100.0 * share()));
    notes.lines.push_back(fmt::format(
        "{:.0f}% of them change every {}; learning rate {:.3g}{}", 100.0 * churn_,
        counted(steps_per_rotation_, "step"), group_rate(),
        static_ == "train" ? fmt::format(", embedding, norms and head {:.3g}", static_rate_) : ""));
    int64_t waiting = 0;
    Rotation ahead = *rotation_;
    while (ahead.window() < windows) ahead.advance();
    for (const int64_t turns : ahead.turns()) waiting += turns == 0 ? 1 : 0;
    if (waiting > 0 && total_elements_ > active_elements_) {
      notes.warnings.push_back(
          fmt::format("in {} only {} of {} groups are trained: a round takes {}; lower "
                      "steps_per_rotation, raise active_params, or train longer",
                      counted(total_steps_, "step"), groups_.size() - static_cast<size_t>(waiting),
                      groups_.size(), counted(windows_of_a_round() * steps_per_rotation_, "step")));
    }
    return notes;
  }

  std::vector<JsonObject> take_events() override { return std::exchange(events_, {}); }

 private:
  Tensor state_view() const {
    // Who visits may write: a checkpoint that is restored.
    auto* bytes = const_cast<uint8_t*>(state_.data());
    return {bytes, DType::u8, {static_cast<int64_t>(state_.size())}};
  }

  // The bytes that checkpoints keep: the next rotation, the steps between, and the rotation's own.
  void save_state() {
    const int64_t steps[kStateSteps] = {next_rotation_, steps_per_rotation_};
    std::memcpy(state_.data(), steps, sizeof steps);
    rotation_->save(std::span(state_).subspan(sizeof steps));
  }
  void restore_state() {
    int64_t steps[kStateSteps];
    std::memcpy(steps, state_.data(), sizeof steps);
    if (steps[0] < 0 || steps[1] < 1) fail(ErrorKind::model, "the rotation state is damaged");
    rotation_->restore(std::span(state_).subspan(sizeof steps));
    next_rotation_ = steps[0];
    // A run that goes on for longer than it began keeps its pace.
    if (chooses_steps_) steps_per_rotation_ = steps[1];
  }

  int64_t windows_of_a_round() const {
    return rotation_->windows_of_a_round(4 * static_cast<int64_t>(groups_.size()));
  }

  bool rotates(std::string_view module) const {
    if (by_block_ || by_matrix_) return true;
    return is_attention(module) ? by_attention_ : by_mlp_;
  }

  std::string group_name(const WeightInfo& info) const {
    if (info.layer < 0) return info.kind == WeightKind::norm ? "norms" : info.module;
    if (info.kind == WeightKind::norm) return "norms";
    if (by_block_) return fmt::format("layers.{}", info.layer);
    if (by_matrix_) return fmt::format("layers.{}.{}", info.layer, info.module);
    return fmt::format("layers.{}.{}", info.layer, is_attention(info.module) ? "attention" : "mlp");
  }

  std::string kinds() const {
    return by_block_        ? "a block"
           : by_matrix_     ? "a matrix"
           : !by_mlp_       ? "attention"
           : !by_attention_ ? "MLP"
                            : "attention or MLP";
  }

  void add_to_group(const std::string& name, RotarySlot* slot) {
    const auto [number, is_new] = group_numbers_.emplace(name, groups_.size());
    if (is_new) groups_.push_back(Group{name, {}, 0});
    Group& group = groups_[number->second];
    group.slots.push_back(slot);
    group.size += slot->size();
    total_elements_ += slot->size();
  }

  // The first group of each name, the number of its layer left out.
  std::vector<int32_t> first_of_kind() const {
    std::vector<int32_t> first;
    std::set<std::string> kinds;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const std::string& name = groups_[g].name;
      const size_t layer = name.find('.');
      const size_t module = layer == std::string::npos ? 0 : name.find('.', layer + 1);
      const std::string kind = module == std::string::npos ? "block" : name.substr(module);
      if (kinds.insert(kind).second) first.push_back(static_cast<int32_t>(g));
    }
    return first;
  }

  // All slots are there: shares and rates can be known.
  void begin() {
    if (rotation_) return;
    if (groups_.empty()) {
      throw Error(ErrorKind::usage, "no weight rotates", "see rotation_groups and static");
    }
    active_elements_ = parse_active_params(active_params_, total_elements_);
    std::vector<int64_t> sizes;
    for (const Group& group : groups_) sizes.push_back(group.size);
    rotation_.emplace(sizes, RotationOptions{order_, active_elements_, churn_, seed_});
    state_.resize(kStateSteps * sizeof(int64_t) + static_cast<size_t>(rotation_->state_bytes()));
    save_state();
    for (const Group& group : groups_) {
      for (RotarySlot* slot : group.slots) {
        slot->set_learning_rate_scale(scale_of(group_rate()));
      }
    }
  }

  double share() const {
    return static_cast<double>(active_elements_) / static_cast<double>(total_elements_);
  }
  double scale_of(double rate) const { return learning_rate_ > 0 ? rate / learning_rate_ : 1.0; }
  double group_rate() const {
    return group_rate_.value_or(automatic_group_rate(learning_rate_, share()));
  }

  template <class Groups>
  void activate(Context& context, const Groups& groups) {
    for (const int32_t g : groups) {
      for (RotarySlot* slot : slots_of(g)) slot->activate(context);
    }
  }
  // Active -> waiting, outside of a rotation.
  void retire(Context& context, int32_t group) {
    for (RotarySlot* slot : slots_of(group)) {
      slot->leave(context);
      slot->flush(context, &Ops::copy);
    }
  }
  const std::vector<RotarySlot*>& slots_of(int32_t group) const {
    return groups_[static_cast<size_t>(group)].slots;
  }

  // Takes for a moment what weights on their way may take beside the active groups `worst`: the
  // share of them that changes at a rotation, and any single weight.
  void reserve_transit(std::span<const int32_t> worst) {
    int64_t all = 0;
    int64_t largest = 0;
    for (const int32_t group : worst) {
      for (const RotarySlot* slot : slots_of(group)) {
        all += slot->moving_bytes();
        largest = std::max(largest, slot->moving_bytes());
      }
    }
    const int64_t limit =
        std::max(largest, static_cast<int64_t>(churn_ * static_cast<double>(all)));
    transit_.set_limit(limit);
    memory_->allocate(Purpose::weights, limit);
  }

  // Those of `groups` that are not in `others`.
  static std::vector<int32_t> without(std::span<const int32_t> groups,
                                      std::span<const int32_t> others) {
    std::vector<int32_t> out;
    for (const int32_t g : groups) {
      if (std::find(others.begin(), others.end(), g) == others.end()) out.push_back(g);
    }
    return out;
  }

  void expect_next() {
    Rotation next = *rotation_;
    next.advance();
    for (const int32_t group : without(next.active(), rotation_->active())) {
      for (RotarySlot* slot : slots_of(group)) transit_.expect(*slot);
    }
  }

  void rotate(Context& context) {
    const std::vector<int32_t> before(rotation_->active().begin(), rotation_->active().end());
    if (settings_.score) {
      for (const int32_t group : before) rotation_->set_score(group, score(context, group));
    }
    context.ops.finish();  // those on their way are there, and what is measured is the rotation
    const Stopwatch watch;
    rotation_->advance();
    turn_.emplace();
    // All that is given back goes before anything is taken: the peak is that of the larger set.
    for (const int32_t group : without(before, rotation_->active())) {
      turn_->changes.emplace_back(group, 0.0);
      for (RotarySlot* slot : slots_of(group)) {
        slot->leave(context);
        if (!transit_.takes_away(group, *slot)) add_change(group, slot->flush(context, &Ops::copy));
      }
    }
    transit_.arrive();
    turn_->joining = without(rotation_->active(), before);
    activate(context, turn_->joining);
    fetch_ahead();
    context.ops.finish();  // those that leave may be copied away
    seconds_ += watch.seconds();
    if (!transit_.has_work()) log_turn();
  }

  void add_change(int32_t group, double change) {
    if (!std::isfinite(change)) {
      throw Error(ErrorKind::non_finite,
                  fmt::format("weights of {} are no longer finite",
                              groups_[static_cast<size_t>(group)].name),
                  "lower learning_rate or group_learning_rate, or lengthen the warm-up");
    }
    for (auto& [left, sum] : turn_->changes) sum += left == group ? change : 0.0;
  }

  void log_turn() {
    JsonObject left, joined;
    for (const auto& [group, change] : turn_->changes) {
      left.add(groups_[static_cast<size_t>(group)].name, change);
    }
    for (const int32_t group : turn_->joining) {
      joined.add(groups_[static_cast<size_t>(group)].name,
                 rotation_->turns()[static_cast<size_t>(group)]);
    }
    events_.push_back(JsonObject()
                          .add("window", rotation_->window())
                          .add("squared_change", left)
                          .add("turns", joined)
                          .add("seconds", std::exchange(seconds_, 0.0))
                          .add("seconds_beside", std::exchange(seconds_beside_, 0.0)));
    turn_.reset();
  }

  // The groups of the next window, as far as they are known now.
  void fetch_ahead() {
    Rotation next = *rotation_;
    next.advance();
    for (const int32_t g : next.active()) {
      for (RotarySlot* slot : slots_of(g)) {
        if (!slot->learns()) slot->will_need();
      }
    }
  }

  double score(Context& context, int32_t group) const {
    const Group& g = groups_[static_cast<size_t>(group)];
    double squares = 0.0;
    for (const RotarySlot* slot : g.slots) squares += slot->gradient_score(context);
    // A root mean square: large groups are not important for their size alone.
    return std::sqrt(squares / static_cast<double>(g.size)) + 1e-30;
  }

  std::string active_params_;
  RotationOrder order_;
  int64_t steps_per_rotation_;
  bool chooses_steps_;
  double churn_;
  std::string static_;
  double learning_rate_;
  std::optional<double> group_rate_;
  double static_rate_ = 0.0;
  bool masters_in_files_ = false;
  bool by_attention_ = false, by_mlp_ = false, by_block_ = false, by_matrix_ = false;
  RotarySlot::Settings settings_;
  uint64_t seed_ = 0;

  std::vector<Group> groups_;
  std::map<std::string, size_t> group_numbers_;  // in groups_, by name
  int64_t total_elements_ = 0;                   // of all groups
  int64_t active_elements_ = 0;                  // at most, at once
  std::optional<Rotation> rotation_;
  int64_t total_steps_ = 0;
  int64_t next_rotation_ = 0;  // the step before which it happens
  bool held_ = false;          // in a phase that is rehearsed: nothing rotates
  bool overlaps_ = false;      // as the option has it
  Memory* memory_ = nullptr;   // of the device
  RotaryTransit transit_;
  std::optional<Turn> turn_;
  double seconds_ = 0.0;         // of rotations since the last event: steps wait for these,
  double seconds_beside_ = 0.0;  // and not for these
  std::vector<uint8_t> state_;   // of the rotation, as checkpoints see it
  std::vector<JsonObject> events_;
};

}  // namespace

std::span<const OptionSpec> rotary_options() {
  return kOptions;
}

std::span<const Saving> rotary_savings() {
  return kSavings;
}

std::unique_ptr<Learner> make_rotary_learner(const OptionSet& options) {
  return std::make_unique<RotaryLearner>(options);
}

}  // namespace jackscrew
