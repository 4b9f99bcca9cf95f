#include "conversion/rate_fit.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "conversion/model_output.h"
#include "conversion/planned_source.h"
#include "learners/learner.h"
#include "model/weights.h"
#include "recipe/run_options.h"
#include "session/place.h"
#include "session/plan.h"
#include "session/rank_plan.h"

namespace jackscrew {

namespace {

// The model as it would be with every block matrix in the largest, or the smallest, format.
struct PlannedModel {
  ModelFiles files;
  std::vector<int64_t> block_bytes;  // [blocks], in memory, of their matrices
};

template <class Better>
PlannedModel plan_model(const std::string& origin, const ModelConfig& config,
                        const HeldFormats& formats, const Better& better) {
  PlannedModel model;
  model.files.origin = origin;
  model.files.config = config;
  model.block_bytes.assign(static_cast<size_t>(config.num_hidden_layers), 0);
  auto source = std::make_unique<PlannedSource>();
  for (const WeightSpec& weight : weights_of(config, StageSpec::whole(config))) {
    const auto bytes_of = [&](const FormatPointer& format) {
      return format->storage_bytes(weight.rows, weight.cols);
    };
    const std::vector<FormatPointer> ways = formats(weight);
    const FormatPointer& best = *std::ranges::max_element(
        ways, [&](const auto& a, const auto& b) { return better(bytes_of(b), bytes_of(a)); });
    if (weight.is_block_matrix()) {
      int64_t& bytes = model.block_bytes[static_cast<size_t>(weight.layer)];
      bytes = checked_add(bytes, bytes_of(best));
    }
    source->add_stored(weight, best);
  }
  model.files.source = std::move(source);
  return model;
}

int64_t budget_of(const Recipe& recipe, int rank) {
  return of_rank(recipe, rank).device_memory.value();
}

// Else their bits make no difference.
void require_frozen(const Recipe& recipe, const ModelConfig& config) {
  const std::vector<WeightSpec> weights = weights_of(config, StageSpec::whole(config));
  const auto learner = find_learner(recipe.learner).make(recipe.options);
  learner->plan(weights);
  for (const WeightSpec& weight : weights) {
    if (!weight.is_block_matrix() || !learner->changes(weight)) continue;
    throw Error(
        ErrorKind::usage,
        fmt::format("learner={} does not hold the blocks' matrices frozen: no rate of theirs "
                    "makes it fit",
                    recipe.learner),
        "method=lora and method=prompt do");
  }
}

// The first rank that needs more than its budget.
std::optional<int> rank_beyond_budget(const Recipe& recipe, const RanksPlan& plan) {
  for (int rank = 0; rank < recipe.ranks; ++rank) {
    if (plan.ranks[static_cast<size_t>(rank)].ledger.peak > budget_of(recipe, rank)) return rank;
  }
  return std::nullopt;
}

// " on rank 1", where there are several.
std::string on_rank(const Recipe& recipe, int rank) {
  return recipe.ranks > 1 ? fmt::format(" on rank {}", rank) : "";
}

bool has_memory_budget(const OptionSet& options) {
  return !options.is_word("device_memory") || !options.list("rank_device_memory").empty();
}

// The limits of stages whose matrices take `block_bytes`, with `room` [stages] for more.
std::vector<StageLimit> limits_of(const RanksPlan& plan, const std::vector<int64_t>& block_bytes,
                                  const std::vector<int64_t>& room) {
  std::vector<int64_t> split = plan.stage_split;  // as Place::stage_split
  if (split.empty()) split = {0, std::ssize(block_bytes)};
  std::vector<StageLimit> limits;
  for (size_t stage = 0; stage < room.size(); ++stage) {
    StageLimit& limit = limits.emplace_back(StageLimit{split[stage + 1], room[stage]});
    for (int64_t block = split[stage]; block < split[stage + 1]; ++block) {
      limit.memory_bytes = checked_add(limit.memory_bytes, block_bytes[static_cast<size_t>(block)]);
    }
  }
  return limits;
}

}  // namespace

bool mixes_gguf_types(const OptionSet& options) {
  const bool has_storage = is_storage_of_files(options) && options.text("storage") != "keep";
  return is_gguf_output(options.text("format"), output_of(options)) && !has_storage &&
         (options.was_set("bits") || has_memory_budget(options));
}

bool rate_fits_a_run(const OptionSet& options) {
  return (options.text("format") == "exl2" || mixes_gguf_types(options)) &&
         has_memory_budget(options);
}

void require_one_rate(const OptionSet& options) {
  if (!rate_fits_a_run(options) || !options.asks_for("bits")) return;
  const char* budget = options.is_word("device_memory") ? "rank_device_memory" : "device_memory";
  throw Error(ErrorKind::usage, fmt::format("both bits and {} are set", budget),
              fmt::format("keep one of them: {} asks for the highest rate with which the run fits",
                          budget));
}

std::vector<StageLimit> limits_that_fit(const Recipe& recipe, const std::string& origin,
                                        const ModelConfig& config, const HeldFormats& formats) {
  require_frozen(recipe, config);
  const PlannedModel largest = plan_model(origin, config, formats, std::greater<>());
  const PlannedModel least = plan_model(origin, config, formats, std::less<>());
  const RanksPlan most = plan_ranks(recipe, largest.files, recipe.ranks);
  std::vector<int64_t> room(static_cast<size_t>(most.layout.stages), 0);
  if (!rank_beyond_budget(recipe, most)) return limits_of(most, largest.block_bytes, room);
  // Not resolved anew from its options, which do not say what storage this run keeps.
  Recipe frugal = recipe;
  frugal.gradient_checkpointing = recipe.gradient_checkpointing.value_or(true);
  const RanksPlan fewest = plan_ranks(frugal, least.files, frugal.ranks);
  if (const auto rank = rank_beyond_budget(recipe, fewest)) {
    const Ledger& ledger = fewest.ranks[static_cast<size_t>(*rank)].ledger;
    const int64_t budget = budget_of(recipe, *rank);
    const std::string option = budget_option(of_rank(recipe, *rank));
    throw Error(
        ErrorKind::does_not_fit,
        fmt::format("in the fewest bits that there are, this run needs {} ({}){}, budget {} ({})",
                    human_bytes(ledger.peak, budget), purposes_text(ledger), on_rank(recipe, *rank),
                    human_bytes(budget, ledger.peak), option),
        fmt::format("raise {}, or lower sequence_len, micro_batch_size or the adapter's rank",
                    option));
  }
  // The copies of a stage have the same matrices.
  std::ranges::fill(room, std::numeric_limits<int64_t>::max());
  for (int rank = 0; rank < recipe.ranks; ++rank) {
    int64_t& of_stage = room[static_cast<size_t>(fewest.layout.stage_of(rank))];
    const int64_t peak = fewest.ranks[static_cast<size_t>(rank)].ledger.peak;
    of_stage = std::min(of_stage, budget_of(recipe, rank) - peak);
  }
  return limits_of(fewest, least.block_bytes, room);
}

void check_fits(const Recipe& recipe, const ModelFiles& written) {
  const RanksPlan plan = plan_ranks(recipe, written, recipe.ranks);
  const auto rank = rank_beyond_budget(recipe, plan);
  if (!rank) return;
  const int64_t peak = plan.ranks[static_cast<size_t>(*rank)].ledger.peak;
  const int64_t budget = budget_of(recipe, *rank);
  const std::string option = budget_option(of_rank(recipe, *rank));
  throw Error(ErrorKind::does_not_fit,
              fmt::format("with what was written this run needs {}{}, budget {} ({})",
                          human_bytes(peak, budget), on_rank(recipe, *rank),
                          human_bytes(budget, peak), option),
              fmt::format("lower {} a little", option));
}

}  // namespace jackscrew
