#include "conversion/exl2_fit.h"

#include <memory>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "conversion/exl2_mixtures.h"
#include "conversion/planned_source.h"
#include "model/weights.h"
#include "quant/format.h"
#include "recipe/quantise_options.h"
#include "session/knobs.h"
#include "session/plan.h"

namespace jackscrew {

namespace {

// The model as it would be with every block matrix in the largest, or the smallest, mixture.
struct PlannedModel {
  ModelFiles files;
  int64_t memory_bytes = 0;  // of the blocks' matrices
};

template <class Better>
PlannedModel plan_model(const ModelFiles& files, int64_t head_bits, const std::string& rest,
                        const Better& better) {
  PlannedModel model;
  model.files.origin = files.origin;
  model.files.config = files.config;
  const bool plain_head = head_bits == kExl2PlainHead;
  if (!plain_head) model.files.config.tie_word_embeddings = false;
  auto source = std::make_unique<PlannedSource>();
  for (const WeightSpec& weight :
       weights_of(model.files.config, StageSpec::whole(model.files.config))) {
    if (weight.is_block_matrix()) {
      std::optional<int64_t> best;
      Exl2Groups best_groups;
      for (const Exl2Mixture& mixture : exl2_mixtures()) {
        const Exl2Groups groups = exl2_groups(mixture, weight.cols);
        const int64_t bytes = exl2_memory_bytes(weight, groups);
        if (best && !better(bytes, *best)) continue;
        best = bytes;
        best_groups = groups;
      }
      model.memory_bytes = checked_add(model.memory_bytes, best.value());
      source->add_computed(weight, exl2_format(best_groups));
    } else if (weight.module == "lm_head" && !plain_head) {
      source->add_computed(weight,
                           exl2_format(exl2_groups(exl2_head_mixture(head_bits), weight.cols)));
    } else {
      source->add_computed(weight, unowned(find_format(rest)));
    }
  }
  model.files.source = std::move(source);
  return model;
}

SessionPlan rehearse_over(const Recipe& recipe, const ModelFiles& files) {
  return Session::rehearse(recipe, files, training_use(recipe));
}

}  // namespace

bool exl2_fits_a_run(const OptionSet& options) {
  return options.text("format") == "exl2" && !options.is_word("device_memory");
}

bool exl2_fits_a_run(const Recipe& recipe) {
  if (!exl2_fits_a_run(recipe.options)) return false;
  if (asks_for(recipe.options, "bits")) {
    throw Error(
        ErrorKind::usage, "both bits and device_memory are set",
        "keep one of them: device_memory asks for the highest rate with which the run fits");
  }
  return true;
}

int64_t exl2_bytes_that_fit(const Recipe& recipe, const ModelFiles& files, int64_t head_bits,
                            const std::string& rest) {
  const int64_t budget = recipe.device_memory.value();
  const PlannedModel largest = plan_model(files, head_bits, rest, std::greater<>());
  const PlannedModel least = plan_model(files, head_bits, rest, std::less<>());
  const SessionPlan most = rehearse_over(recipe, largest.files);
  if (most.ledger.peak <= budget) return largest.memory_bytes;
  const Recipe frugal =
      recipe.gradient_checkpointing ? recipe : with_settings(recipe, "gradient_checkpointing=true");
  const SessionPlan fewest = rehearse_over(frugal, least.files);
  if (fewest.weight_bytes == most.weight_bytes) {
    throw Error(
        ErrorKind::usage,
        fmt::format("learner={} does not hold the blocks' matrices frozen: no rate of theirs "
                    "makes it fit",
                    recipe.learner),
        "method=lora and method=prompt do");
  }
  if (fewest.ledger.peak > budget) {
    throw Error(
        ErrorKind::does_not_fit,
        fmt::format("in the fewest bits that there are, this run needs {} ({}), budget {} "
                    "(device_memory)",
                    human_bytes(fewest.ledger.peak), purposes_text(fewest.ledger),
                    human_bytes(budget)),
        "raise device_memory, or lower sequence_len, micro_batch_size or the adapter's rank");
  }
  return budget - (fewest.ledger.peak - least.memory_bytes);
}

void check_exl2_fits(const Recipe& recipe, const ModelFiles& written) {
  const SessionPlan plan = rehearse_over(recipe, written);
  const int64_t budget = recipe.device_memory.value();
  if (plan.ledger.peak <= budget) return;
  throw Error(
      ErrorKind::does_not_fit,
      fmt::format("with what was written this run needs {}, budget {} (device_memory)",
                  human_bytes(plan.ledger.peak, budget), human_bytes(budget, plan.ledger.peak)),
      "lower device_memory a little");
}

}  // namespace jackscrew
