#include "learners/rotary_options.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/checked.h"
#include "base/text.h"
#include "learners/given_rate.h"
#include "learners/rotary.h"
#include "optim/optimizer.h"

namespace jackscrew {

namespace {

constexpr OptionSpec kRotaryOptions[] = {
    {.name = "active_params",
     .type = OptionType::text,
     .default_text = "7%",
     .help = "most weights trained at once: a share of those that rotate (10%) or a number (300M)"},
    {.name = "rotation_groups",
     .type = OptionType::list,
     .default_text = "matrix",
     .help = "what is activated together: attention and mlp of a block (or one of them alone), "
             "block, matrix",
     .choices = "attention mlp block matrix"},
    {.name = "rotation_order",
     .type = OptionType::text,
     .default_text = "permutation",
     .help =
         "permutation: all once a round; random; ascending; descending; importance: by gradient",
     .choices = kRotationOrders.words},
    {.name = "rotation_parts",
     .type = OptionType::list,
     .default_text = "",
     .help = "blocks of each part that rotates by itself, such as 15,15: those of a pipeline's "
             "stages, which then have their share of the active weights each; nothing: one part"},
    {.name = "steps_per_rotation",
     .type = OptionType::integer,
     .default_text = "auto",
     .help = "steps from one rotation to the next; auto: 50, or fewer in a short run, with turns "
             "of at least 10",
     .aliases = "reshufle_steps",
     .choices = "auto",
     .min = 1,
     .max = 1e9},
    {.name = "churn",
     .type = OptionType::number,
     .default_text = "0.5",
     .help = "fraction of the active groups replaced at a rotation",
     .min = 0.01,
     .max = 1},
    {.name = "moments",
     .type = OptionType::text,
     .default_text = "keep",
     .help = "Adam moments of waiting groups: keep (on the host) or reset",
     .choices = "reset keep"},
    {.name = "static",
     .type = OptionType::text,
     .default_text = "train",
     .help = "embedding, norms and head: train (always), rotate (as groups), freeze",
     .choices = "train rotate freeze"},
    {.name = "group_learning_rate",
     .type = OptionType::number,
     .default_text = "auto",
     .help = "learning rate of the active groups; auto: learning_rate, raised up to 4 times, but "
             "not beyond 5e-4, where few are active; at most 1e-3",
     .choices = "auto",
     .min = 0},
    {.name = "static_learning_rate",
     .type = OptionType::number,
     .default_text = "auto",
     .help = "learning rate of embedding, norms and head; auto: learning_rate",
     .choices = "auto",
     .min = 0},
    {.name = "master",
     .type = OptionType::text,
     .default_text = "ram",
     .help = "where the exact values of waiting groups are: ram, or mmap (files in output_dir)",
     .choices = "ram mmap"},
    {.name = "master_dtype",
     .type = OptionType::text,
     .default_text = "f32",
     .help = "exact values of waiting groups: f32, or bf16 by stochastic rounding",
     .choices = "f32 bf16"},
    {.name = "overlap_rotation",
     .type = OptionType::boolean,
     .default_text = "false",
     .help = "on a GPU: overlap the copies of rotations with the steps; takes 6 bytes of its "
             "memory (12 with optimizer=adamw) for every weight that changes places"},
};

// Files cost a read and a write of each group that rotates. Settings that halve the active weights
// or round the masters cost learning, and rank below all that cost time alone.
constexpr std::array<Saving, 8> kRotarySavings = {{
    {"overlap_rotation=false", "steps wait for the copies of a rotation", 1.01},
    {"moments=reset", "moments are reset at every turn", 1.3},
    {"master=mmap", "exact values wait in files", 1.02},
    {"master_dtype=bf16", "exact values rounded stochastically", 1.5},
    {"active_params=50%", "a round takes longer", 1.5},
    {"active_params=25%", "a round takes longer", 2.25},
    {"active_params=10%", "a round takes longer", 3.4},
    {"active_params=5%", "a round takes longer", 5.1},
}};

// In a turn of fewer steps the moments do not become meaningful.
constexpr int64_t kShortestTurn = 10;

// A group learns in a share of the steps only; a rate higher by the inverse of that share takes its
// weights as far as full training would (SmolLM2-135M, a quarter active: docs/methods.md). The rate
// stays within what AdamW is known to tolerate: rates for training from scratch are as high as they
// can be already (a small Llama: 1e-3 is better than 2e-3, with a quarter active as with all).
double automatic_group_rate(double learning_rate, double share) {
  constexpr double kHighestScale = 4.0;  // the most that was measured
  constexpr double kHighestScaledRate = 5e-4;
  constexpr double kHighestRate = 1e-3;
  const double scaled = learning_rate * std::min(kHighestScale, 1.0 / share);
  return std::min(kHighestRate, std::max(learning_rate, std::min(scaled, kHighestScaledRate)));
}

[[noreturn]] void refuse_active_params(const std::string& text, const char* why) {
  throw Error(ErrorKind::usage, fmt::format("active_params={} {}", text, why),
              "give a share such as 10%, or a number of parameters such as 300M");
}

// "10%" or "300M".
ActiveParams parse_active_params(const std::string& text) {
  const size_t digits = text.find_last_of("0123456789.") + 1;
  const auto number = parse_double(std::string_view(text).substr(0, digits));
  if (!number) refuse_active_params(text, "is not a number");
  double value = *number;
  const std::string unit = text.substr(digits);
  if (unit == "K" || unit == "k") {
    value *= 1e3;
  } else if (unit == "M" || unit == "m") {
    value *= 1e6;
  } else if (unit == "B" || unit == "b" || unit == "G") {
    value *= 1e9;
  } else if (!unit.empty() && unit != "%") {
    refuse_active_params(text, "has an unknown unit");
  }
  return {text, value, unit == "%"};
}

bool is_attention(std::string_view module) {
  return module == "q_proj" || module == "k_proj" || module == "v_proj" || module == "o_proj";
}

// Adds "name=value" where an option was changed.
void add_changed(const OptionSet& options, const char* name, std::vector<std::string>& to) {
  if (options.is_changed(name)) to.push_back(fmt::format("{}={}", name, options.text(name)));
}

}  // namespace

RotaryOptions::RotaryOptions(const OptionSet& options)
    : active_params(parse_active_params(options.text("active_params"))),
      order(kRotationOrders[options.text("rotation_order")]),
      parts(options.whole_numbers("rotation_parts")),
      steps_per_rotation(options.integer_unless_word("steps_per_rotation")),
      churn(options.number("churn")),
      storage(options.text("storage")),
      static_weights(options.text("static")),
      learning_rate(options.number("learning_rate")),
      group_learning_rate(given_rate(options, "group_learning_rate")),
      static_learning_rate(given_rate(options, "static_learning_rate").value_or(learning_rate)),
      masters_in_files(options.text("master") == "mmap"),
      overlap(options.boolean("overlap_rotation")),
      weight_decay_(options.number("weight_decay")) {
  slots.master = options.text("master_dtype") == "bf16" ? DType::bf16 : DType::f32;
  slots.keep_moments = options.text("moments") == "keep";
  slots.score = order == RotationOrder::importance;
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
  if (group_learning_rate == 0.0) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: group_learning_rate=0 trains no group",
                            options.origin("group_learning_rate")),
                "leave it auto; rotation_groups says what learns");
  }
  if (static_weights != "train" && !options.is_word("static_learning_rate")) {
    throw Error(
        ErrorKind::usage,
        fmt::format("{}: static_learning_rate is of weights that always learn, but static is {}",
                    options.origin("static_learning_rate"), static_weights),
        "leave it out, or set static=train");
  }
  check_weight_decay(weight_decay_, static_learning_rate,
                     fmt::format("static_learning_rate {}", static_learning_rate));
  check_group_decay(1.0);  // of a rate that is given; others are known with the model
  for (const char* name :
       {"rotation_order", "rotation_parts", "steps_per_rotation", "churn", "overlap_rotation"}) {
    add_changed(options, name, of_rotations);
  }
  add_changed(options, "master_dtype", of_masters);
  // Moments that are kept wait where masters do.
  if (!slots.keep_moments) add_changed(options, "master", of_masters);
  if (overlap && slots.master == DType::bf16) {
    throw Error(ErrorKind::usage, "overlap_rotation copies exact values as they are kept",
                "set master_dtype=f32, or overlap_rotation=false");
  }
  if (overlap && slots.score) {
    throw Error(
        ErrorKind::usage,
        "with rotation_order=importance the groups that join are known only at the rotation",
        "set another rotation_order, or overlap_rotation=false");
  }
}

bool RotaryOptions::rotates(std::string_view module) const {
  if (by_block_ || by_matrix_) return true;
  return is_attention(module) ? by_attention_ : by_mlp_;
}

RotaryOptions::GroupName RotaryOptions::group_of(const WeightSpec& weight) const {
  if (weight.kind == WeightKind::norm) return {"norms", "norms"};
  if (weight.layer < 0) return {weight.module, weight.module};
  if (by_block_) return {fmt::format("layers.{}", weight.layer), "block"};
  const std::string kind = by_matrix_                    ? weight.module
                           : is_attention(weight.module) ? "attention"
                                                         : "mlp";
  return {fmt::format("layers.{}.{}", weight.layer, kind), kind};
}

int32_t RotaryOptions::part_of(const WeightSpec& weight) const {
  if (parts.empty() || weight.kind == WeightKind::embedding) return 0;
  const size_t last = parts.size() - 1;
  if (weight.layer < 0) return static_cast<int32_t>(last);
  size_t part = 0;
  for (int64_t layer = weight.layer; part < last && layer >= parts[part]; ++part) {
    layer -= parts[part];
  }
  return static_cast<int32_t>(part);
}

void RotaryOptions::check_parts(int64_t blocks) const {
  int64_t sum = 0;
  for (const int64_t count : parts) sum = checked_add(sum, count);
  if (parts.empty() || sum == blocks) return;
  throw Error(ErrorKind::usage,
              fmt::format("rotation_parts has {} blocks, the model has {}", sum, blocks),
              "give the number of blocks of each part, such as those of stage_split");
}

const char* RotaryOptions::groups_text() const {
  return by_block_        ? "a block"
         : by_matrix_     ? "a matrix"
         : !by_mlp_       ? "attention"
         : !by_attention_ ? "MLP"
                          : "attention or MLP";
}

int64_t RotaryOptions::active_elements(int64_t total) const {
  const auto all = static_cast<double>(total);
  const double value = active_params.value * (active_params.is_percentage ? all / 100.0 : 1.0);
  if (!(value >= 1.0)) refuse_active_params(active_params.text, "trains nothing");
  if (value > all * (1.0 + 1e-9)) {
    throw Error(ErrorKind::usage,
                fmt::format("active_params={} is more than the {} parameters that rotate",
                            active_params.text, human_count(total)),
                "set active_params=100%, or method=full");
  }
  return std::min(total, static_cast<int64_t>(std::llround(value)));
}

int64_t RotaryOptions::automatic_steps(int64_t total_steps, int64_t windows_of_a_round,
                                       double windows_of_a_turn) {
  const auto shortest =
      static_cast<int64_t>(std::lround(static_cast<double>(kShortestTurn) / windows_of_a_turn));
  return std::clamp(total_steps / (2 * windows_of_a_round), std::max<int64_t>(1, shortest),
                    kLongestWindow);
}

double RotaryOptions::group_rate(double share) const {
  return group_learning_rate.value_or(automatic_group_rate(learning_rate, share));
}

void RotaryOptions::check_group_decay(double share) const {
  const double rate = group_rate(share);
  check_weight_decay(weight_decay_, rate, fmt::format("group_learning_rate {}", rate));
}

std::span<const OptionSpec> rotary_options() {
  return kRotaryOptions;
}

std::span<const Saving> rotary_savings() {
  return kRotarySavings;
}

}  // namespace jackscrew
