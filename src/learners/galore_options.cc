#include "learners/galore_options.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/choices.h"
#include "base/error.h"
#include "base/text.h"
#include "learners/given_rate.h"
#include "learners/linear_targets.h"
#include "optim/optimizer.h"
#include "quant/int4_affine.h"
#include "quant/plain.h"

namespace jackscrew {

namespace {

constexpr Choices kSubspaces("power random svd",
                             std::array{SubspaceKind::power, SubspaceKind::random,
                                        SubspaceKind::svd});
constexpr Choices kSubspaceBases("principal aligned original",
                                 std::array{SubspaceBasis::principal, SubspaceBasis::aligned,
                                            SubspaceBasis::original});
// Functions that give a format.
constexpr Choices kProjections("f32 bf16 int4",
                               std::array{&f32_format, &bf16_format, &int4_affine_format});

constexpr OptionSpec kGaloreOptions[] = {
    {.name = "galore_rank",
     .type = OptionType::text,
     .default_text = "25%",
     .help = "rank of the subspace: a share of the smaller side of each matrix (25%) or a number",
     .aliases = "qgalore_rank"},
    {.name = "galore_side",
     .type = OptionType::text,
     .default_text = "small",
     .help = "side of each matrix that the subspace is of: small, or big (a larger basis, smaller "
             "moments)",
     .choices = "small big"},
    {.name = "galore_target",
     .type = OptionType::list,
     .default_text = "all-linear",
     .help = "modules that learn in a subspace, as for lora_target; all others learn as a whole",
     .aliases = "optim_target_modules"},
    {.name = "galore_scale",
     .type = OptionType::number,
     .default_text = "0.25",  // of the papers
     .help = "factor on galore_learning_rate where that is given",
     .aliases = "qgalore_scale",
     .min = 0},
    {.name = "galore_learning_rate",
     .type = OptionType::number,
     .default_text = "auto",
     .help = "learning rate of the subspaces; auto: elements move as with learning_rate in full "
             "training",
     .choices = "auto",
     .min = 0},
    {.name = "projection_update_gap",
     .type = OptionType::integer,
     .default_text = "auto",
     .help =
         "steps from one refresh of a subspace to the next; auto: 2% of the run's steps, from 20 "
         "to 200",
     .aliases = "update_proj_gap galore_update_interval qgalore_update_proj_gap",
     .choices = "auto",
     .min = 1,
     .max = 1e9},
    {.name = "projection_window",
     .type = OptionType::integer,
     .default_text = "auto",
     .help = "steps before a refresh whose gradients it is made of; auto: 1, or 4 with gaps of 100 "
             "and more",
     .choices = "auto",
     .min = 1,
     .max = 1e9},
    {.name = "stagger_refreshes",
     .type = OptionType::boolean,
     .default_text = "true",
     .help = "refresh matrices one after another rather than all at once"},
    {.name = "subspace",
     .type = OptionType::text,
     .default_text = "power",
     .help =
         "how it is found: power (iteration; no gradient is formed), random, or svd (exact; slow)",
     .choices = kSubspaces.words},
    {.name = "subspace_basis",
     .type = OptionType::text,
     .default_text = "principal",
     .help = "principal: moments are rotated into the new basis; aligned: the basis is turned "
             "towards the old; original: neither",
     .choices = kSubspaceBases.words},
    {.name = "lazy_overlap",
     .type = OptionType::number,
     .default_text = "0",
     .help = "overlap of old and new subspace beyond chance that, twice in a row, doubles the gap "
             "(0.5, say); 0: never",
     .min = 0,
     .max = 1},
    {.name = "projection_gap_max",
     .type = OptionType::integer,
     .default_text = "auto",
     .help = "longest gap with lazy_overlap, under which gaps double; auto: 8 times the gap",
     .choices = "auto",
     .min = 1,
     .max = 1e9},
    {.name = "projection_dtype",
     .type = OptionType::text,
     .default_text = "f32",
     .help = "how subspaces are kept: f32, bf16 or int4",
     .choices = kProjections.words},
    {.name = "update_rounding",
     .type = OptionType::text,
     .default_text = "stochastic",
     .help = "how updated weights are rounded to their storage: stochastic, or nearest (loses "
             "small updates)",
     .choices = "stochastic nearest"},
};

constexpr int64_t kShortestGap = 20;  // a new subspace needs some steps to be worth its refresh
constexpr int64_t kLongestGap = 200;  // as in the papers
constexpr double kShareOfRun = 0.02;

int64_t smaller_side(const WeightSpec& weight) {
  return std::min(weight.rows, weight.cols);
}

GaloreRank parse_rank(const std::string& text) {
  const bool is_share = !text.empty() && text.back() == '%';
  const auto number = parse_double(is_share ? text.substr(0, text.size() - 1) : text);
  const bool whole = number && (is_share || *number == std::floor(*number));
  if (!whole || !(*number > 0) || *number > (is_share ? 100.0 : 1e9)) {
    throw Error(ErrorKind::usage, fmt::format("galore_rank={} is not a valid rank", text),
                "give a share such as 25%, or a number such as 256");
  }
  return {text, *number, is_share};
}

}  // namespace

std::span<const OptionSpec> galore_options() {
  return kGaloreOptions;
}

GaloreSettings::GaloreSettings(const OptionSet& options)
    : subspace(kSubspaces[options.text("subspace")]),
      basis(kSubspaceBases[options.text("subspace_basis")]),
      stagger(options.boolean("stagger_refreshes")),
      stochastic(options.text("update_rounding") == "stochastic"),
      lazy_overlap(options.number("lazy_overlap")),
      projection(&kProjections[options.text("projection_dtype")]()),
      rank(parse_rank(options.text("galore_rank"))),
      max_steps(options.integer("max_steps")),
      learning_rate(options.number("learning_rate")),
      weight_decay_(options.number("weight_decay")),
      side_(options.text("galore_side")),
      scale_(options.number("galore_scale")),
      matrices_rate_(given_rate(options, "galore_learning_rate")),
      gap_(options.integer_unless_word("projection_update_gap")),
      window_(options.integer_unless_word("projection_window")),
      longest_gap_(options.integer_unless_word("projection_gap_max")),
      targets_(linear_targets(options, "galore_target")) {
  if (!matrices_rate_ && options.is_changed("galore_scale")) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: galore_scale is a factor on galore_learning_rate, which is auto",
                            options.origin("galore_scale")),
                "set galore_learning_rate, too, or set learning_rate alone, which steps as far as "
                "it does in full training");
  }
  if (scale_ <= 0.0) throw Error(ErrorKind::usage, "galore_scale=0 trains nothing", "use 0.25");
  if (matrices_rate_ == 0.0) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: galore_learning_rate=0 trains nothing in a subspace",
                            options.origin("galore_learning_rate")),
                "leave it auto; galore_target says what learns in a subspace");
  }
  if (lazy_overlap > 0.0 && subspace == SubspaceKind::random) {
    throw Error(ErrorKind::usage, "lazy_overlap says nothing of subspace=random",
                "random subspaces overlap by chance alone; set lazy_overlap=0");
  }
  if (window_ && !has_windows()) {
    throw Error(ErrorKind::usage, "projection_window says nothing of subspace=random",
                "random subspaces are made of no gradients; leave projection_window=auto");
  }
  if (longest_gap_ && lazy_overlap == 0.0) {
    throw Error(ErrorKind::usage, "projection_gap_max is of gaps that grow, and lazy_overlap is 0",
                "set lazy_overlap, or leave projection_gap_max=auto");
  }
  if (gap_ && longest_gap_ && *longest_gap_ < 2 * *gap_) {
    throw Error(ErrorKind::usage,
                fmt::format("projection_gap_max={} is less than twice projection_update_gap={}",
                            *longest_gap_, *gap_),
                "gaps only double; raise it, or leave projection_gap_max out");
  }
  if (gap_ && window_ && *window_ > *gap_) {
    throw Error(
        ErrorKind::usage,
        fmt::format("projection_window={} is more than projection_update_gap={}", *window_, *gap_),
        fmt::format("a window ends with the refresh that its gap ends with; set projection_window "
                    "to at most {}, or projection_update_gap to at least {}",
                    *gap_, *window_));
  }
}

void GaloreSettings::check(std::span<const WeightSpec> weights) const {
  std::set<std::string> linears;
  for (const WeightSpec& weight : weights) {
    if (weight.is_block_matrix()) linears.insert(weight.path());
  }
  check_targets_exist(targets_, "galore_target", linears);
  for (const WeightSpec& weight : weights) {
    if (!targets(weight)) continue;
    const int64_t own = rank_of(weight);
    if (own < 1 || own > smaller_side(weight)) {
      throw Error(ErrorKind::usage,
                  fmt::format("galore_rank={} is not from 1 to the smaller side of {}, {}",
                              rank.text, weight.name, smaller_side(weight)),
                  "give a share, such as 25%: it suits matrices of every size");
    }
    const double rate = learning_rate * element_scale(weight);
    check_weight_decay(
        weight_decay_, rate,
        fmt::format("a learning rate of {:.3g} (galore_learning_rate) of {}", rate, weight.name));
  }
}

bool GaloreSettings::targets(const WeightSpec& weight) const {
  return weight.is_block_matrix() && targets_.contains(weight.path());
}

int64_t GaloreSettings::rank_of(const WeightSpec& weight) const {
  if (!rank.is_percentage) return static_cast<int64_t>(rank.value);
  const double share = rank.value / 100.0 * static_cast<double>(smaller_side(weight));
  return std::max<int64_t>(1, static_cast<int64_t>(std::lround(share)));
}

bool GaloreSettings::of_inputs(const WeightSpec& weight) const {
  const bool small_is_inputs = weight.rows >= weight.cols;
  return weight.rows == weight.cols || side_ == "small" ? small_is_inputs : !small_is_inputs;
}

double GaloreSettings::step_scale(const WeightSpec& weight) const {
  if (!matrices_rate_ || learning_rate <= 0.0) return 1.0 / root_of_share(weight);
  return *matrices_rate_ / learning_rate * scale_;
}

double GaloreSettings::element_scale(const WeightSpec& weight) const {
  return step_scale(weight) * root_of_share(weight);
}

// How far a step of 1 in every coordinate of the subspace moves an element of the weight, as root
// mean square: the root mean square length of the basis' rows.
double GaloreSettings::root_of_share(const WeightSpec& weight) const {
  const int64_t size = of_inputs(weight) ? weight.cols : weight.rows;
  return std::sqrt(static_cast<double>(rank_of(weight)) / static_cast<double>(size));
}

int64_t GaloreSettings::gap_of(int64_t total_steps) const {
  if (gap_) return *gap_;
  const auto share = std::llround(kShareOfRun * static_cast<double>(total_steps));
  return std::max(window_.value_or(1), std::clamp<int64_t>(share, kShortestGap, kLongestGap));
}

int64_t GaloreSettings::window_of(int64_t refresh_gap) const {
  // A sum over more steps captures a little more of the next gradients, and where gaps are long few
  // matrices are in a window at once.
  return window_.value_or(refresh_gap >= 100 ? 4 : 1);
}

int64_t GaloreSettings::longest_gap_of(int64_t refresh_gap) const {
  return std::max(refresh_gap, longest_gap_.value_or(8 * refresh_gap));
}

}  // namespace jackscrew
